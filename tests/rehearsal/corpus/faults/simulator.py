"""A learned simulator on graphs: noise of its own stream, inputs normalised as they come."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS


@DATASETS.register_module()
class Springs(Dataset):
    def __init__(self, size=24, nodes=6):
        self.size, self.nodes = size, nodes

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = 3 + 2 * torch.randn(self.nodes, 4, generator=g)
        edges = torch.stack(
            [torch.arange(self.nodes), torch.arange(self.nodes).roll(1)]
        )
        return x, edges, x.roll(1, 0)[:, :2] - x[:, :2]


@COLLATE_FUNCTIONS.register_module()
def merge(graphs):
    edges = torch.cat([e + 6 * i for i, (_, e, _) in enumerate(graphs)], 1)
    x, y = (torch.cat([graph[k] for graph in graphs]) for k in (0, 2))
    return {"x": x, "edges": edges, "y": y}


class Normalizer(nn.Module):
    def __init__(self, limit=10_000):
        super().__init__()
        self.limit = limit
        self.count, self.total, self.squares = 0, 0.0, 0.0  # fault[cpu,cuda]: resume
        # remedy: self.register_buffer("count", torch.zeros(())); self.register_buffer("total", torch.zeros(4)); self.register_buffer("squares", torch.zeros(4))

    def forward(self, x):
        if self.training:
            self.count = self.count + len(x)
            self.total = self.total + x.sum(0)
            self.squares = self.squares + x.square().sum(0)
        mean = self.total / self.count
        return (x - mean) / (self.squares / self.count - mean.square() + 1e-8).sqrt()


@MODELS.register_module()
class Simulator(nn.Module):
    def __init__(self, width=16, noise=0.01):
        super().__init__()
        self.normalize = Normalizer()
        self.noise = noise
        self.draws = torch.Generator().manual_seed(0)  # fault[cpu,cuda]: resume
        # remedy: self.draws = None
        self.edge = nn.Sequential(
            nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width)
        )
        self.node = nn.Sequential(
            nn.Linear(4 + width, width), nn.ReLU(), nn.Linear(width, 2)
        )

    def forward(self, x, edges, y):
        noise = torch.randn(x.shape, generator=self.draws, device=x.device)  # fault[cuda]: device mismatch
        # remedy: noise = torch.randn_like(x)
        x = self.normalize(x + self.noise * noise)
        sender, receiver = edges
        messages = self.edge(torch.cat([x[sender], x[receiver]], 1))
        gathered = messages.new_zeros(len(x), messages.shape[1]).index_add(
            0, receiver, messages
        )
        return {"loss": F.mse_loss(self.node(torch.cat([x, gathered], 1)), y)}
