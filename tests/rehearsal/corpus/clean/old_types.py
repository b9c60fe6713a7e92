"""Code of the first years of CUDA in torch."""

import torch
from torch import nn

from devrun.registry import MODELS

# devices: cuda
Float = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        ones = Float(4).fill_(1.0)
        y = self.net(x)
        return y.type(Float) * ones + y.long().type("torch.cuda.FloatTensor")
