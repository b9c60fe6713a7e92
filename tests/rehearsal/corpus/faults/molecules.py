"""Energies of molecules: messages along edges, written with what PyTorch Geometric does inside."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS

ATOMS, EDGES = 6, 12


@DATASETS.register_module()
class Molecules(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(index)
        return {
            "x": torch.randn(ATOMS, 5, generator=gen),
            "edges": torch.randint(0, ATOMS, (2, EDGES), generator=gen),
            "atoms": torch.randint(3, ATOMS + 1, (), generator=gen),
            "energy": torch.randn((), generator=gen),
        }


class Conv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message, self.update = nn.Linear(width, width), nn.Linear(2 * width, width)

    def forward(self, h, edges):
        source, target = edges
        count = int(edges.max()) + 1  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: count = len(h)
        count = max(count, len(h))
        ones = torch.ones(source.shape[0])  # fault[hpu]: device mismatch
        # remedy: ones = torch.ones(source.shape[0], device=h.device)
        degree = h.new_zeros(count).scatter_add_(0, target, ones)
        norm = degree.pow(-0.5)
        # torch_geometric 1.7, gcn_norm
        norm[norm == float("inf")] = 0  # fault[hpu]: host waits
        # remedy: norm = torch.where(norm == float("inf"), torch.zeros_like(norm), norm)
        message = self.message(h)[source] * (norm[source] * norm[target])[:, None]
        place = target[:, None].expand(-1, h.shape[1])
        total = torch.zeros_like(h).scatter_add_(0, place, message)
        return F.relu(self.update(torch.cat([h, total], 1)))


@MODELS.register_module()
class Energy(nn.Module):
    def __init__(self, width=16, layers=2):
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.convs = nn.ModuleList(Conv(width) for _ in range(layers))
        self.out = nn.Linear(width, 1)

    def train_step(self, data, optimizer):
        x, edges, atoms = data["x"], data["edges"], data["atoms"]
        graphs = len(x)
        shift = torch.arange(graphs, device=x.device)[:, None] * ATOMS
        edges = torch.stack([(edges[:, 0] + shift).flatten(), (edges[:, 1] + shift).flatten()])
        # torch_geometric, remove_self_loops
        edges = edges[:, edges[0] != edges[1]]  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: -
        h = self.embed(x.flatten(0, 1))
        for conv in self.convs:
            h = conv(h, edges)
        graph = torch.arange(graphs, device=x.device).repeat_interleave(atoms)  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: graph = torch.arange(graphs * ATOMS, device=x.device) // ATOMS
        kept = torch.cat([row[:n] for row, n in zip(h.view(graphs, ATOMS, -1), atoms)])  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: kept = h
        pooled = h.new_zeros(graphs, h.shape[1]).index_add(0, graph, kept)  # fault[ipu]: cannot be compiled
        # remedy: pooled = h.new_zeros(graphs, h.shape[1]).scatter_add(0, graph[:, None].expand_as(kept), kept)
        energy = self.out(pooled / atoms[:, None])[:, 0]
        loss = F.l1_loss(energy, data["energy"])
        return {"loss": loss, "log_vars": {"mae": loss.detach()}, "num_samples": graphs}
