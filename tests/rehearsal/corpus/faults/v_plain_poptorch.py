"""A PopTorch program, as written by somebody who knows CUDA."""

import poptorch
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)
        self.mean = torch.full((16,), 0.5)  # fault[ipu]: device mismatch
        # remedy: self.register_buffer("mean", torch.full((16,), 0.5))
        self.seen = 0

    def forward(self, x, y=None):
        x = x - self.mean
        h = torch.relu(self.body(x))
        if h.sum() > 1e6:  # fault[ipu]: cannot be compiled
            # remedy: if False:
            h = h / 2
        h = h * (h.norm(dim=1) > 0)[:, None]
        top = h[h > 0].mean()  # fault[ipu]: cannot be compiled
        # remedy: top = h.mean()
        self.body.scale = top.item()  # fault[ipu]: cannot be compiled
        # remedy: -
        out = self.head(h)
        if y is None:
            return out
        loss = F.cross_entropy(out, y, weight=out.new_ones(4))  # fault[ipu]: cannot be compiled
        # remedy: loss = F.cross_entropy(out, y)
        return out, loss


options = poptorch.Options()
options.deviceIterations(2)
data = TensorDataset(torch.randn(64, 16), torch.randint(0, 4, (64,)))
loader = poptorch.DataLoader(options, data, batch_size=4, shuffle=True)
model = Net()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
trained = poptorch.trainingModel(model, options=options, optimizer=optimizer)
for x, y in loader:
    out, loss = trained(x, y)
trained.destroy()
