"""Attention by sparsemax with a backward of its own; its words are trained later."""

import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Questions(Dataset):
    def __init__(self, size=48, length=10, words=50):
        draw = torch.Generator().manual_seed(11)
        self.words = torch.randint(1, words, (size, length), generator=draw)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return self.words[i], self.words[i].sum() % 3


class Sparsemax(torch.autograd.Function):
    """The nearest point of the simplex to scores * heat."""

    @staticmethod
    def forward(ctx, scores, heat):
        scaled = scores * heat
        ordered = scaled.sort(-1, descending=True)[0]
        sums = ordered.cumsum(-1) - 1
        rank = torch.arange(1, scores.shape[-1] + 1)  # fault[cuda]: device mismatch
        # remedy: rank = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        size = (ordered * rank > sums).sum(-1, keepdim=True)
        out = (scaled - sums.gather(-1, size - 1) / size).clamp(min=0)
        ctx.save_for_backward(out, heat)
        return out

    @staticmethod
    def backward(ctx, grad):
        out, heat = ctx.saved_tensors
        support = (out > 0).to(grad.dtype)
        mean = (grad * support).sum(-1, keepdim=True) / support.sum(-1, keepdim=True)
        return support * (grad - mean) * heat, None


@MODELS.register_module()
class Reader(nn.Module):
    def __init__(self, words=50, width=16, classes=3):
        super().__init__()
        self.embed = nn.Embedding(words, width).requires_grad_(False)
        self.keys = nn.Linear(width, width)
        self.query = nn.Parameter(torch.randn(width))
        self.heat = nn.Parameter(torch.ones(()))  # fault[cpu]: no gradient
        # remedy: self.register_buffer("heat", torch.ones(()))
        self.head = nn.Linear(width, classes)

    def forward(self, words):
        values = self.embed(words)
        share = Sparsemax.apply(self.keys(values) @ self.query, self.heat)
        return self.head((share.unsqueeze(-1) * values).sum(1))


@HOOKS.register_module()
class Thaw(Hook):
    """The words are trained too once the run has come so far."""

    def after_train_iter(self, runner):
        if runner.iter >= 5:
            runner.model.embed.requires_grad_(True)
