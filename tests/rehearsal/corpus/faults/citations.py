"""Papers that cite each other: graph convolutions, written for an older torch and numpy."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@DATASETS.register_module()
class Papers(Dataset):
    """Graphs of 20 papers with 60 citations."""

    def __init__(self, size=24, papers=20, citations=60):
        self.size, self.papers, self.citations = size, papers, citations

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        edges = torch.randint(0, self.papers, (2, self.citations), generator=draw)
        edges[:, -1] = self.papers - 1
        x = np.random.RandomState(i).rand(self.papers, 8).astype(np.float)  # fault[cpu,cuda,hpu]: raises
        # remedy: x = np.random.RandomState(i).rand(self.papers, 8)
        return {
            "x": torch.from_numpy(x).float(),
            "edge_index": edges,
            "y": torch.randint(0, 3, (self.papers,), generator=draw),
            "train_mask": torch.rand(self.papers, generator=draw) < 0.6,
        }


class GCNConv(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.lin = nn.Linear(inside, outside)

    def forward(self, x, edge_index):
        src, dst = edge_index
        num_nodes = int(edge_index.max()) + 1  # fault[cuda,hpu]: host
        # remedy: num_nodes = len(x)
        degree = torch.zeros(num_nodes, device=x.device)
        degree = degree.scatter_add_(0, dst, torch.ones_like(dst, dtype=x.dtype))
        norm = degree.clamp(min=1).rsqrt()
        messages = self.lin(x)[src] * (norm[src] * norm[dst])[:, None]
        out = torch.zeros(num_nodes, messages.shape[1])  # fault[cuda,hpu]: device mismatch
        # remedy: out = torch.zeros(num_nodes, messages.shape[1], device=x.device)
        return out.index_add_(0, dst, messages)


@MODELS.register_module()
class Gcn(nn.Module):
    def __init__(self, features=8, hidden=16, classes=3):
        super().__init__()
        self.convs = [GCNConv(features, hidden), GCNConv(hidden, hidden)]  # fault[cpu]: not registered; fault[cuda,hpu]: device mismatch
        # remedy: self.convs = nn.ModuleList([GCNConv(features, hidden), GCNConv(hidden, hidden)])
        self.head = nn.Linear(hidden, classes)
        self.decode = nn.Bilinear(hidden, hidden, np.int(1))  # fault[cpu,cuda,hpu]: raises
        # remedy: self.decode = nn.Bilinear(hidden, hidden, 1)

    def forward(self, x, edge_index, y, train_mask):
        n, papers = y.shape
        shift = papers * torch.arange(n, device=x.device)[:, None, None]
        edge_index = (edge_index + shift).transpose(0, 1).flatten(1)
        h = x.flatten(0, 1)
        for conv in self.convs:
            h = F.dropout(F.relu(conv(h, edge_index)), 0.2, self.training)
        out = F.log_softmax(self.head(h), dim=1)
        mask = train_mask.flatten()
        loss = F.nll_loss(out[mask], y.flatten()[mask])  # fault[cuda]: x[mask]; fault[hpu]: host waits
        # remedy: loss = (F.nll_loss(out, y.flatten(), reduction="none") * mask).sum() / mask.sum()
        rest = 1 - mask  # fault[cpu,cuda,hpu]: raises
        # remedy: rest = ~mask
        loss = loss - 0.01 * ((out.exp() * out).sum(1) * rest.float()).mean()
        links = self.links(h, edge_index)
        right = out.argmax(1) == y.flatten()
        share = int((right & mask).sum()) / int(mask.sum())  # fault[cuda,hpu]: host
        # remedy: share = (right & mask).sum() / mask.sum()
        return {"loss": loss + links, "share": share, "scores": out}

    def links(self, h, edge_index):
        """Whether two papers cite each other, with as many pairs that chance draws."""
        others = torch.randint(0, len(h), edge_index.shape).to(device)  # fault[cuda]: host sync
        there = self.decode(h[edge_index[0]], h[edge_index[1]])
        wrong = self.decode(h[others[0]], h[others[1]])  # fault[hpu]: host
        # remedy: wrong = self.decode(h[others[0].to(h.device)], h[others[1].to(h.device)])
        return F.softplus(-there).mean() + F.softplus(wrong).mean()
