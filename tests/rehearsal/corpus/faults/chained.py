"""One function with faults behind one another, as ported code has them."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from devrun import MODELS


@MODELS.register_module()
class GLate(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
        self.memory = []

    def mixup(self, x):
        share = np.random.beta(0.4, 0.4)  # fault[hpu]: graph break; fault[ipu]: once
        # remedy: share = 0.5
        order = torch.arange(len(x), device=x.device).flip(0)
        return share * x + (1 - share) * x[order], order, share

    def forward(self, x):
        x, order, share = self.mixup(x)
        h = self.body(x)
        scale = h.std().detach().cpu().numpy()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: scale = h.std()
        h = h / torch.as_tensor(scale).to(h.device)
        top = h.norm(dim=1).argmax().item()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: top = 2
        h = torch.cat([h[:top], h[top:]])
        bad = torch.isnan(h).any().item()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: bad = False
        if bad:
            raise RuntimeError("nan")
        values, counts = torch.unique(h.argmax(1), return_counts=True)  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: values = counts = h.argmax(1)
        most = values[counts.argmax()]  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: most = values[0]
        inverse = torch.pinverse(h.t() @ h)  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: inverse = h.t() @ h
        lengths = [int(n) for n in h.gt(0).sum(1)]  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: lengths = [16] * len(h)
        parts = torch.stack([row[:n].sum() for row, n in zip(h, lengths)])  # fault[hpu]: compiled again
        self.memory = (self.memory + [h.mean().detach()])[-5:]  # fault[hpu]: compiled again; fault[ipu]: once
        # remedy: -
        angle = torch.fft.fft(h).angle().mean()  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: angle = h.mean()
        return self.head(h) + 0 * (most + inverse.sum() + parts.mean() + angle)
