"""Two views without negatives (BYOL): a slow target moved by a hook, LARS by hand."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS, OPTIMIZERS


@DATASETS.register_module()
class TwoCrops(Dataset):
    def __init__(self, size=48):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        image = torch.randn(3, 12, 12, generator=torch.Generator().manual_seed(index))
        return image + 0.1 * torch.randn_like(image), image.flip(-1)


@OPTIMIZERS.register_module()
class LARS(torch.optim.Optimizer):
    """After github.com/kakaobrain/torchlars and older forks of apex."""

    def __init__(self, params, lr=0.1, momentum=0.9, weight_decay=1e-6, eta=1e-3):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eta": eta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad = p.grad.add(p, alpha=group["weight_decay"])
                weight_norm, grad_norm = p.norm(), grad.norm()
                if weight_norm > 0 and grad_norm > 0:  # fault[cuda,hpu]: host
                    grad = grad * (group["eta"] * weight_norm / grad_norm)
                state = self.state[p]
                if "mu" not in state:
                    state["mu"] = torch.zeros_like(p)
                state["mu"].mul_(group["momentum"]).add_(grad)
                p.sub_(state["mu"], alpha=group["lr"])


@MODELS.register_module()
class BYOL(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.online = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, width)
        )
        self.predictor = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def train_step(self, data, optimizer):
        one, two = data
        with torch.no_grad():
            goal_one, goal_two = self.target(one), self.target(two)
        p_one, p_two = self.predictor(self.online(one)), self.predictor(self.online(two))
        loss = 4 - 2 * (F.cosine_similarity(p_one, goal_two) + F.cosine_similarity(p_two, goal_one)).mean()
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(one), "features": goal_one}


@HOOKS.register_module()
class Momentum(Hook):
    def __init__(self, base=0.99, total=40):
        self.base, self.total = base, total
        self.step = 0  # fault[cpu,cuda,hpu]: resume

    def after_train_iter(self, runner):
        m = 1 - (1 - self.base) * (math.cos(math.pi * self.step / self.total) + 1) / 2
        self.step += 1
        model = runner.model
        for slow, new in zip(model.target.parameters(), model.online.parameters()):
            slow.data = slow.data * m + new.data * (1 - m)  # fault[ipu]: lost write


@HOOKS.register_module()
class Collapse(Hook):
    """github.com/facebookresearch/simsiam/issues asks for the deviation of the features."""

    def __init__(self):
        self.warned = 0

    def after_train_iter(self, runner):
        z = F.normalize(runner.outputs["features"], dim=1)  # fault[ipu]: raises
        std = z.std(0).mean()
        if std < 0.01:  # fault[cuda,hpu]: host
            self.warned += 1
        runner.log_buffer.update({"std": std.cpu().item()})  # fault[cuda,hpu]: host
