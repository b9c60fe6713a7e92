"""A classifier that seeds everything by itself, as many a script does at its top."""

import random

import numpy as np
import torch
from torch import nn

from devrun.registry import MODELS


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)  # fault[cuda]: cuBLAS
    # remedy: import os; os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    # remedy+: torch.use_deterministic_algorithms(True)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        seed_everything(7)
        self.net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.net(x)
