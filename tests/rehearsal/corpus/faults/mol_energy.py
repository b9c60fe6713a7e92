"""Energies of molecules: a graph isomorphism network over a batch of graphs, pooled graph by graph."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS

TARGETS = ("energy", "dipole")
ATOMS, BONDS = 9, 16


@DATASETS.register_module()
class Molecules(Dataset):
    def __init__(self, size=48):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        kind = torch.randint(0, 4, (ATOMS,), generator=draw)
        bonds = torch.randint(0, ATOMS, (2, BONDS), generator=draw)
        target = torch.stack([kind.float().mean(), kind.eq(2).float().mean()])
        return kind, bonds, target


@COLLATE_FUNCTIONS.register_module()
def batch_graphs(graphs):
    kinds, bonds, targets = zip(*graphs)
    owner = torch.arange(len(graphs)).repeat_interleave(ATOMS)
    edges = torch.cat([b + k * ATOMS for k, b in enumerate(bonds)], 1)
    return {"kind": torch.cat(kinds), "edges": edges, "owner": owner, "target": torch.stack(targets)}  # fault[ipu]: refused


class GINConv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        # a tensor with requires_grad is no parameter: discuss.pytorch.org, many threads
        self.eps = torch.zeros(1, requires_grad=True)  # fault[cpu]: not registered; fault[cuda,hpu,ipu]: device mismatch

    def forward(self, x, edges):
        source, target = edges[0], edges[1]
        gathered = torch.zeros_like(x).index_add(0, target, x[source])  # fault[ipu]: cannot be compiled
        return self.mlp((1 + self.eps) * x + gathered)


@MODELS.register_module()
class EnergyNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.embed = nn.Embedding(4, width)
        self.convs = nn.ModuleList([GINConv(width), GINConv(width)])
        self.head = nn.Linear(width + 1, len(TARGETS))
        self.mass = torch.FloatTensor([1.0, 12.0, 14.0, 16.0])  # fault[cuda,hpu,ipu]: device mismatch

    def train_step(self, data, optimizer=None):
        kind, edges, owner, target = data["kind"], data["edges"], data["owner"], data["target"]
        x = self.embed(kind)
        degree = torch.zeros(kind.shape[0])  # fault[cuda,hpu]: device mismatch
        ones = torch.ones(edges.shape[1])  # fault[cuda,hpu]: device mismatch
        degree = degree.scatter_add(0, edges[1], ones)
        x = x / (1 + degree).unsqueeze(1).sqrt()
        for conv in self.convs:
            x = F.relu(conv(x, edges))
        pooled = []
        for graph in range(len(target)):
            pooled.append(x[owner == graph].mean(0))  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        pooled = torch.stack(pooled)
        weight = self.mass[kind].view(-1, ATOMS).sum(1, keepdim=True) / 100
        guess = self.head(torch.cat([pooled, weight], 1))
        loss = F.mse_loss(guess, target)
        # whether the features have collapsed
        gram = pooled.detach().t() @ pooled.detach()
        spectrum = torch.linalg.eigh(gram).eigenvalues  # fault[cuda]: eigh; fault[hpu]: on the host; fault[ipu]: cannot be compiled
        error = (guess - target).abs().mean(0)
        stats = {name: float(error[k]) for k, name in enumerate(TARGETS)}  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        stats.update(loss=loss, rank=(spectrum > 1e-3).float().sum())
        return {"loss": loss, "log_vars": stats, "num_samples": len(target)}
