"""A teacher that follows the student, hidden in a list so that it is not trained."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(16, 4)
        self.teacher = [copy.deepcopy(self.student)]  # fault[cpu]: resume; fault[cuda,hpu,ipu]: device mismatch

    def train_step(self, data, optimizer):
        x, y = data
        out = self.student(x)
        with torch.no_grad():
            goal = self.teacher[0](x).softmax(1)
            for slow, fast in zip(self.teacher[0].parameters(), self.student.parameters()):
                slow.lerp_(fast, 0.1)  # fault[ipu]: lerp
        loss = F.cross_entropy(out, y) + F.cross_entropy(out, goal)
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}
