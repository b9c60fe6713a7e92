"""Self-supervision in two views, with a centre, a queue and momentum."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)  # fault[cpu,cuda]: resume
        # remedy: self.generator = None

    def __len__(self):
        return 24

    def view(self, x):
        return x + 0.1 * torch.randn(x.shape, generator=self.generator)

    def __getitem__(self, index):
        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return self.view(x), self.view(x)


class Loss(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.center = torch.zeros(1, width)  # fault[cpu,cuda]: resume; fault[cuda]: device mismatch
        # remedy: self.register_buffer("center", torch.zeros(1, width))
        self.temperature = 0.1

    def forward(self, student, teacher):
        goal = ((teacher - self.center) / 0.04).softmax(1)
        loss = -(goal * (student / self.temperature).log_softmax(1)).sum(1).mean()
        self.center = self.center * 0.9 + teacher.mean(0, keepdim=True) * 0.1  # fault[cpu,cuda]: backward again
        # remedy: self.center = (self.center * 0.9 + teacher.mean(0, keepdim=True) * 0.1).detach()
        return loss


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 8))
        self.teacher = copy.deepcopy(self.student)
        self.predictor = nn.Linear(8, 8)  # fault[cpu]: no gradient
        # remedy: --cfg-options freeze=[predictor]
        self.criterion = Loss(8)
        self.momentum = 0.9  # fault[cpu,cuda]: resume
        # remedy: self.momentum = 0.99
        self.cuda()  # fault[cpu]: .cuda()
        # remedy: -

    def train_step(self, data, optimizer=None):
        a, b = data
        p, z = self.student(a), self.teacher(b)
        with torch.no_grad():
            q = self.predictor(p)
        loss = self.criterion(p, z) - F.cosine_similarity(q, z).mean() * 0.1
        sim = F.normalize(p, dim=1) @ F.normalize(z, dim=1).T
        eye = torch.eye(len(a), dtype=torch.bool)
        negatives = sim[~eye].view(len(a), -1)  # fault[cuda]: host sync
        # remedy: negatives = sim - 2 * eye.to(sim.device, non_blocking=True)
        hardest = negatives.max(1).values.tolist()  # fault[cuda]: host sync
        # remedy: hardest = negatives.max(1).values
        std = p.std(0).mean()
        print("collapse?", std)  # fault[cuda]: host sync
        # remedy: -
        if math.isnan(loss):  # fault[cuda]: host sync
            # remedy: if False:
            raise FloatingPointError
        for mine, theirs in zip(self.teacher.parameters(), self.student.parameters()):
            mine.data = self.momentum * mine.data + (1 - self.momentum) * theirs.data
        self.momentum = min(0.99, self.momentum + 0.01)
        return {"loss": loss, "log_vars": {"hard": hardest[0]}, "num_samples": len(a)}


@HOOKS.register_module()
class Cosine(Hook):
    def __init__(self):
        self.steps = 0  # fault[cpu,cuda]: resume

    def before_train_iter(self, runner):
        self.steps += 1
        for group in runner.optimizer.param_groups:
            group["lr"] = 0.01 * (1 + math.cos(math.pi * self.steps / 12))

    def after_train_epoch(self, runner):
        norm = torch.stack([one.grad.norm() for one in runner.model.parameters()]).max()  # fault[cpu,cuda]: raises
        # remedy: norm = torch.stack([one.grad.norm() for one in runner.model.parameters() if one.grad is not None]).max()
        self.norm = norm
