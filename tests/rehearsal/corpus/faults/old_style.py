"""Code of the first years of torch, with Python's own functions on tensors."""

import math

import numpy as np
import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        h = self.net(x)
        ones = torch.Tensor([1.0, 1.0, 1.0, 1.0])  # fault[cuda]: device mismatch
        # remedy: ones = torch.ones(4, device=x.device)
        h = h * ones
        twos = torch.FloatTensor(4).fill_(2.0)  # fault[cuda]: device mismatch
        # remedy: twos = torch.full((4,), 2.0, device=x.device)
        h = h * twos
        size = math.sqrt(h.pow(2).sum())  # fault[cuda]: float()
        # remedy: size = h.pow(2).sum().sqrt()
        order = sorted(h[0].tolist())  # fault[cuda]: .tolist()
        # remedy: order = h[0].sort()[0]
        least = min(h[:, 0].detach())  # fault[cuda]: host sync
        # remedy: least = h[:, 0].detach().min()
        far = np.array(h.detach())  # fault[cuda]: numpy on the device
        # remedy: far = h
        table = torch.tensor(np.eye(4, dtype="float32"))  # fault[cuda]: device mismatch
        # remedy: table = torch.eye(4, device=x.device)
        h = h @ table
        if (h != h).any():  # fault[cuda]: host sync
            # remedy: if False:
            raise FloatingPointError
        print("max %.2f" % h.max())  # fault[cuda]: host sync
        # remedy: pass
        return h + 0 * (size + order[0] + least + far[0, 0])
