"""A small net on a Gaudi that logs every few steps."""
# devices: hpu
# check: --device hpu
import os

os.environ["PT_HPU_LAZY_MODE"] = "1"
import habana_frameworks.torch.core as htcore
import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("hpu")
net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)).to(device)
optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
total = torch.zeros((), device=device)
for step in range(8):
    x, y = torch.randn(4, 3, 8, 8).to(device), torch.randint(4, (4,)).to(device)
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    htcore.mark_step()
    optimizer.step()
    htcore.mark_step()
    scheduler.step()
    total += loss.detach()
print((total / 8).item())
