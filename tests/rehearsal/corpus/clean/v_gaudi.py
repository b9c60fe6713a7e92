"""A loop for a Gaudi, which reads its loss once in a while."""

# devices: hpu

import habana_frameworks.torch.core as htcore
import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("hpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    x = torch.randn(8, 16).to("hpu", non_blocking=True)
    y = torch.randint(0, 4, (8,)).to("hpu", non_blocking=True)
    with torch.autocast("hpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    htcore.mark_step()
    optimizer.step()
    htcore.mark_step()
    if step % 4 == 0:
        print(step, loss.item())
