"""A PopTorch program with images in half precision."""

import poptorch
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)
        self.noise = torch.zeros(8)  # fault[ipu]: device mismatch
        # remedy: self.register_buffer("noise", torch.zeros(8))
        self.calls = 0

    def forward(self, x, y=None):
        self.calls += 1  # fault[ipu]: once
        # remedy: -
        h = F.relu(self.norm(self.conv(x)))
        h = F.adaptive_max_pool2d(h, 1).flatten(1)  # fault[ipu]: cannot be compiled
        # remedy: h = h.amax((2, 3))
        h = h + self.noise.to(h.dtype)
        if torch.isnan(h).any():  # fault[ipu]: cannot be compiled
            # remedy: if False:
            h = torch.nan_to_num(h)
        h = torch.cat([h[:, :1] * 2, h[:, 1:]], 1)
        q = torch.quantile(h.float(), 0.9, dim=1)  # fault[ipu]: cannot be compiled
        # remedy: q = h.float().amax(1)
        out = self.head(h) + 0 * q[:, None]
        if y is None:
            return out
        weight = torch.multinomial(out.softmax(1), 1).float()  # fault[ipu]: cannot be compiled
        # remedy: weight = out.softmax(1)[:, :1]
        loss = F.cross_entropy(out, y) * weight.mean()
        return out, poptorch.identity_loss(loss, reduction="mean")


opts = poptorch.Options()
opts.deviceIterations(2)
opts.Training.gradientAccumulation(2)
data = TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 4, (64,)))
loader = poptorch.DataLoader(opts, data, batch_size=4, drop_last=True)
net = Net()
opt = poptorch.optim.SGD(net.parameters(), lr=0.1)
model = poptorch.trainingModel(net, options=opts, optimizer=opt)
for x, y in loader:
    out, loss = model(x, y)
