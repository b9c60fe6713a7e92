"""Pixels that are classified, with a confusion matrix and class weights."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(5, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.weights = [1.0, 2.0, 1.0, 1.0]
        self.seen = torch.zeros(4, 4)  # fault[cuda]: device mismatch
        # remedy: self.register_buffer("seen", torch.zeros(4, 4))

    def forward(self, x):
        ys, xs = torch.meshgrid(torch.linspace(0, 1, 8), torch.linspace(0, 1, 8), indexing="ij")  # fault[cuda]: device mismatch
        # remedy: ys, xs = torch.meshgrid(*[torch.linspace(0, 1, 8, device=x.device)] * 2, indexing="ij")
        place = torch.stack([ys, xs])[None].expand(len(x), 2, 8, 8)
        assert x.abs().max() < 1e6, "numbers out of range"  # fault[cuda]: host sync
        # remedy: pass
        return self.head(self.body(torch.cat([x, place], 1)).relu())

    def train_step(self, data, optimizer):
        x, labels = data
        logits = self(x)
        y = labels[:, None, None].expand(-1, 8, 8)
        weight = torch.tensor(self.weights)  # fault[cuda]: device mismatch
        # remedy: weight = torch.tensor(self.weights, device=x.device)
        loss = F.cross_entropy(logits, y, weight, ignore_index=255)
        guess = logits.argmax(1)
        self.seen.index_put_((guess.flatten(), y.flatten()), torch.ones((), device=x.device), accumulate=True)
        for kind in y.unique():  # fault[cuda]: unique
            # remedy: for kind in range(4):
            loss = loss + 0 * logits[:, 0].mean() * kind
        good = (guess == y).float().mean().item()  # fault[cuda]: .item()
        # remedy: good = (guess == y).float().mean()
        return {"loss": loss, "log_vars": {"good": good}, "num_samples": len(x)}
