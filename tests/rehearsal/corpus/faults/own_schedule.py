"""A hook with a schedule of torch's, which begins anew at a resume."""

from torch import nn
from torch.optim.lr_scheduler import StepLR

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@HOOKS.register_module()
class Steps(Hook):
    factor = 1.0  # fault[cpu,hpu]: resume

    def after_train_iter(self, runner):
        self.factor *= 0.9
        for group in runner.optimizer.param_groups:
            group["lr"] = 0.01 * self.factor


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        return self.net(x)
