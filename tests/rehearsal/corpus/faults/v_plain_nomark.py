"""A loop for a Gaudi that never cuts the lazy graph, on a batch that grows."""

import habana_frameworks.torch.core as htcore
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        h = self.a(x).double()  # fault[hpu]: float64
        # remedy: h = self.a(x)
        return self.b(torch.tanh(h).float())


net = Net().to("hpu")
optimizer = torch.optim.AdamW(net.parameters())
for step in range(8):
    rows = np.random.rand(4, 8).astype("float32")
    loss = net(torch.from_numpy(rows).to("hpu")).square().mean()
    loss.backward()
    optimizer.step()  # fault[hpu]: no step mark
    # remedy: optimizer.step(); htcore.mark_step()
    optimizer.zero_grad()
