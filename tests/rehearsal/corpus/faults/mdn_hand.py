"""Handwriting: an RNN with a mixture density, and a hook that lets it write."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Strokes(Dataset):
    def __init__(self, size=48, steps=14):
        draw = torch.Generator().manual_seed(5)
        self.moves = 25 * torch.randn(size, steps, 2, generator=draw)
        self.lifted = torch.randint(0, 3, (size, steps), generator=draw)
        self.lengths = torch.randint(4, 12, (size,), generator=draw)

    def __len__(self):
        return len(self.moves)

    def __getitem__(self, i):
        lengths = self.lengths[i]
        return {"moves": self.moves[i], "pen": self.lifted[i], "lengths": lengths}


@MODELS.register_module()
class Writer(nn.Module):
    def __init__(self, hidden=16, mixtures=3):
        super().__init__()
        self.rnn = nn.GRU(2 + 3, hidden, batch_first=True)
        self.weights = nn.Linear(hidden, mixtures)
        self.places = nn.Linear(hidden, 4 * mixtures)

    def parts(self, moves, pen):
        hot = F.one_hot(pen)  # fault[cuda]: host sync
        # remedy: hot = F.one_hot(pen, num_classes=3)
        hidden, _ = self.rnn(torch.cat([moves / 25, hot], -1))
        weights = self.weights(hidden).softmax(-1)
        means, spread = self.places(hidden).unflatten(-1, (-1, 4)).split(2, -1)
        return weights, means, spread.exp()

    def forward(self, moves, pen, lengths):
        weights, means, spread = self.parts(moves[:, :-1], pen[:, :-1])
        longest = int(lengths.max()) - 1  # fault[cuda]: host sync
        # remedy: longest = moves.shape[1] - 1
        z = (moves[:, 1:].unsqueeze(2) - means) / spread
        each = torch.exp(-0.5 * (z * z).sum(-1)) / (2 * math.pi * spread.prod(-1))
        right = (weights * each).sum(-1)[:, :longest]
        steps = torch.arange(longest, device=moves.device)
        inside = steps < (lengths - 1)[:, None]
        likely = right.log()  # fault[cpu,cuda]: refused
        # remedy: likely = (right + 1e-9).log()
        return {"loss": -likely.masked_fill(~inside, 0).sum() / inside.sum()}


@HOOKS.register_module()
class Doodle(Hook):
    """Let the pen write a few moves every third update, to see what it has learnt."""

    def __init__(self):
        self.doodles = []

    @torch.no_grad()
    def after_train_iter(self, runner):
        if not self.every_n_iters(runner, 3):
            return
        at = torch.zeros(1, 1, 2, device=next(runner.model.parameters()).device)
        pen = torch.tensor([[2]])  # fault[cuda]: device mismatch
        # remedy: pen = torch.tensor([[2]], device=at.device)
        self.doodles = []
        for _ in range(4):
            weights, means, spread = runner.model.parts(at, pen)
            one = torch.distributions.Categorical(weights[0, 0]).sample()
            at = (means + spread * torch.randn_like(means))[:, :, one]
            self.doodles.append(at.flatten().cpu())
