"""An optimizer of one's own that looks at each gradient."""

import torch
from torch import nn

from devrun.registry import MODELS, OPTIMIZERS


@OPTIMIZERS.register_module()
class Careful(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                norm = weight.grad.norm().item()  # fault[cuda]: .item()
                # remedy: norm = weight.grad.norm()
                if torch.isfinite(weight.grad).all():  # fault[cuda]: host sync
                    # remedy: if True:
                    weight.sub_(weight.grad / (norm + 1), alpha=group["lr"])


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        return self.net(x)
