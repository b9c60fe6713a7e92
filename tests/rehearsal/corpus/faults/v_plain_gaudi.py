"""A loop for a Gaudi."""

import torch
from torch import nn
from torch.nn import functional as F
import habana_frameworks.torch.core as htcore

device = torch.device("hpu")
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scale = torch.ones(16)  # fault[hpu]: device mismatch
# remedy: scale = torch.ones(16, device=device)
total = 0.0
for step in range(8):
    x = torch.randn(8, 16).to(device)
    y = torch.randint(0, 4, (8,)).to(device)
    x = x * scale
    keep = x[x.sum(1) > -100]  # fault[hpu]: host waits
    # remedy: keep = x
    loss = F.cross_entropy(model(keep), y)
    loss = loss + torch.linalg.svdvals(model[0].weight).sum() * 0  # fault[hpu]: on the host
    # remedy: -
    optimizer.zero_grad()
    loss.backward()
    htcore.mark_step()
    optimizer.step()
    htcore.mark_step()
    total += loss.item()  # fault[hpu]: host waits
    # remedy: total += loss.detach()
    print("grad", model[0].weight.grad.norm())  # fault[hpu]: host waits
    # remedy: -
    torch.cuda.synchronize()  # fault[hpu]: hard-wired cuda
    # remedy: -
