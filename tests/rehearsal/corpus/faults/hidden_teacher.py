"""A student that learns from a teacher it must not save."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


def net(width):
    return nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self, heat=4.0):
        super().__init__()
        self.student = net(8)
        teacher = net(32).eval()  # fault[cuda]: device mismatch
        # remedy: teacher = self.kept = net(32).eval().requires_grad_(False)
        object.__setattr__(self, "teacher", teacher)
        self.heat = heat  # fault[cpu,cuda]: resume
        self.match = nn.Linear(8, 32)

    def soft(self, said, taught):
        return F.kl_div((said / self.heat).log_softmax(1), (taught / self.heat).softmax(1), reduction="batchmean")

    def hints(self, h, wanted):
        return F.mse_loss(self.match(h.detach()), wanted) + 0 * self.match.weight.sum()

    def agree(self, said, taught):
        same = said.argmax(1).eq(taught.argmax(1)).float().mean()
        return same.cpu().numpy()  # fault[cuda]: .cpu()
        # remedy: return same

    def train_step(self, data, optimizer):
        x, y = data
        with torch.no_grad():
            taught = self.teacher(x)
        said = self.student(x)
        loss = F.cross_entropy(said, y) + self.heat**2 * self.soft(said, taught)
        logs = {"loss": loss.detach(), "agree": self.agree(said, taught)}
        return {"loss": loss + self.hints(self.student[:3](x), self.teacher[:3](x).detach()), "log_vars": logs, "num_samples": len(x)}


@HOOKS.register_module()
class Cool(Hook):
    def after_train_iter(self, runner):
        runner.model.heat = max(1.0, runner.model.heat * 0.95)

    def after_train_epoch(self, runner):
        best = runner.meta["best_agreement"]  # fault[cpu,cuda]: raises
        # remedy: best = runner.meta.get("best_agreement")
        runner.logger.info("best agreement so far: %s", best)
