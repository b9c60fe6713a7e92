"""A graph network under PopTorch, brought from a notebook."""

import poptorch
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message, self.update = nn.Linear(2 * width, width), nn.GRUCell(width, width)
        self.calls = 0

    def forward(self, h, src, dst):
        self.calls += 1  # fault[ipu]: once
        # remedy: -
        m = self.message(torch.cat([h[src], h[dst]], 1)).relu()
        keep = m.abs().sum(1) > 0
        m = m[keep]  # fault[ipu]: cannot be compiled
        # remedy: m = m * keep[:, None]
        total = torch.zeros_like(h)
        total.index_add_(0, dst[: len(m)], m)  # fault[ipu]: cannot be compiled
        # remedy: total = total.scatter_add(0, dst[:, None].expand_as(m), m)
        return self.update(total, h)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.layers = nn.ModuleList(Layer(8) for _ in range(2))
        self.out = nn.Linear(8, 1)
        self.register_buffer("mean", torch.zeros(()))
        self.scale = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0])  # fault[ipu]: device mismatch
        # remedy: self.register_buffer("scale", torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0]))

    def forward(self, x, edges, y):
        h = self.embed(x * self.scale)
        src, dst = edges[0].t().unbind(0)
        degree = torch.bincount(dst)  # fault[ipu]: cannot be compiled
        # remedy: degree = torch.bincount(dst, minlength=12)
        for layer in self.layers:
            h = layer(h, src, dst)
        lonely = int((degree == 0).sum())  # fault[ipu]: cannot be compiled
        # remedy: lonely = 0
        if lonely > 99:
            h = h * 0
        pooled = torch.stack([h.mean(0), h.amax(0), h.quantile(0.5, dim=0)])  # fault[ipu]: cannot be compiled
        # remedy: pooled = torch.stack([h.mean(0), h.amax(0), h.mean(0)])
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean()  # fault[ipu]: cannot be compiled
        # remedy: self.mean.copy_(0.9 * self.mean + 0.1 * h.detach().mean())
        said = self.out(pooled.mean(0))
        text = f"{said.mean():.3f}"  # fault[ipu]: cannot be compiled
        # remedy: text = ""
        first = F.mse_loss(said, y.mean(0, keepdim=True))
        assert first >= 0, text  # fault[ipu]: cannot be compiled
        # remedy: -
        values = torch.linalg.eigvalsh(h.t() @ h)  # fault[ipu]: cannot be compiled
        # remedy: values = h
        return said, poptorch.identity_loss(first + 0 * values.sum(), reduction="none")


net = Net()
optimizer = torch.optim.NAdam(net.parameters(), lr=1e-3)
model = poptorch.trainingModel(net, optimizer=optimizer)  # fault[ipu]: raises
# remedy: model = poptorch.trainingModel(net, optimizer=poptorch.optim.AdamW(net.parameters(), lr=1e-3))
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for _ in range(3):
    said, loss = model(torch.randn(12, 5), torch.randint(0, 12, (1, 20, 2)), torch.randn(12))
    loss.backward()  # fault[ipu]: raises
    # remedy: -
    schedule.step()
