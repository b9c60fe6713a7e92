"""A script for a Gaudi in eager mode, with what it trains compiled by the SDK."""
# devices: hpu

import os

os.environ["PT_HPU_LAZY_MODE"] = "0"

import torch
import torch.nn.functional as F
from torch import nn

import habana_frameworks.torch.core as htcore


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.mix = nn.Conv1d(16, 16, 3, padding=1)
        self.head = nn.Linear(16, 5)

    def forward(self, words):
        h = self.mix(self.embed(words).transpose(1, 2)).transpose(1, 2)
        if h.mean() > 10:  # fault[hpu]: graph break; fault[hpu]: host waits
            # remedy: if False:
            h = h / 10
        return self.head(h)


@torch.compile(backend="hpu_backend")
def smoothed(scores, tags):
    print("smoothed")  # fault[hpu]: graph break
    # remedy: -
    return F.cross_entropy(scores.flatten(0, 1), tags.flatten(), label_smoothing=0.1)


class Meter:
    def __init__(self):
        self.total = 0

    def add(self, loss):
        self.total += loss  # fault[hpu]: kept graph
        # remedy: self.total += loss.detach()


device = torch.device("hpu")
model = Tagger().to(device)
model.compile(backend="hpu_backend")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
meter = Meter()
for step in range(8):
    words = torch.randint(0, 50, (4, 12)).to(device)
    tags = torch.randint(0, 5, (4, 12))  # fault[hpu]: device mismatch
    # remedy: tags = torch.randint(0, 5, (4, 12)).to(device)
    loss = smoothed(model(words), tags)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    meter.add(loss)
print(f"loss {float(meter.total) / 8:.3f}")
