"""A script for a Gaudi that asks for eager mode when it is too late."""
# devices: hpu

import os

import torch
from torch import nn

import habana_frameworks.torch.core as htcore

os.environ["PT_HPU_LAZY_MODE"] = "0"  # fault[hpu]: mode
# remedy: -

model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 1)).to("hpu")
compiled = torch.compile(model, backend="hpu_backend")  # fault[hpu]: torch.compile
# remedy: compiled = model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for step in range(8):
    x = torch.randn(16, 12).to("hpu")
    loss = (compiled(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    htcore.mark_step()
    optimizer.step()
    htcore.mark_step()
    kept.append(loss)  # fault[hpu]: kept graph
    # remedy: kept.append(loss.detach())
print(torch.stack(kept).mean().item())
