"""Whether a small molecule is toxic: a graph convolution over dense matrices, written for a CPU."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS

ATOMS, KINDS = 10, 5


@DATASETS.register_module()
class Toxic(Dataset):
    def __init__(self, size=48):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        draw = np.random.default_rng(i)
        links = np.triu(draw.random((ATOMS, ATOMS)) < 0.3, 1).astype(float)
        kind = draw.integers(0, KINDS, ATOMS)
        kind[0], kind[6 + i % 4 :] = 1 + i % 4, 0
        adjacency = links + links.T
        return {"adj": torch.from_numpy(adjacency), "kind": torch.from_numpy(kind), "toxic": int(kind[0] > 2)}  # fault[hpu]: float64


class GraphConvolution(nn.Module):
    """After github.com/tkipf/pygcn."""

    def __init__(self, inside, outside):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inside, outside).uniform_(-0.3, 0.3))
        self.bias = nn.Parameter(torch.zeros(outside))

    def forward(self, x, adj):
        looped = adj + torch.eye(adj.size(-1))  # fault[cuda,hpu,ipu]: device mismatch
        scale = looped.sum(-1).clamp(min=1).rsqrt()
        normed = scale.unsqueeze(-1) * looped * scale.unsqueeze(-2)
        return normed @ (x @ self.weight) + self.bias


class AttentiveReadout(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.value = nn.Linear(width, 1), nn.Linear(width, width)

    def forward(self, h, there):
        # one graph at a time, as the number of atoms differs
        pooled = []
        for atoms, mask in zip(h, there):
            real = torch.masked_select(atoms, mask.unsqueeze(-1)).view(-1, atoms.size(-1))  # fault[cuda,hpu]: host; fault[hpu]: compiled again; fault[ipu]: cannot be compiled
            pooled.append((torch.sigmoid(self.gate(real)) * self.value(real)).sum(0))
        return torch.stack(pooled)


@MODELS.register_module()
class ToxicNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.embed = nn.Embedding(KINDS, width)
        self.conv1, self.conv2 = GraphConvolution(width, width), GraphConvolution(width, width)
        self.readout = AttentiveReadout(width)
        self.head = nn.Linear(width, 2)
        self.seen = 0

    def train_step(self, data, optimizer=None):
        adj, kind, toxic = data["adj"].float(), data["kind"], data["toxic"]
        there = kind > 0
        h = torch.relu(self.conv1(self.embed(kind), adj))
        h = torch.relu(self.conv2(h, adj))
        scores = self.head(self.readout(h, there))
        loss = F.cross_entropy(scores, toxic)
        self.seen += len(kind)  # fault[ipu]: once
        # stackoverflow: "why is my GPU slower than my CPU", a print in each step
        print("after", self.seen, "molecules the loss is", loss)  # fault[cuda,hpu]: print; fault[ipu]: cannot be compiled
        predicted = scores.detach().softmax(1)[:, 1].numpy()  # fault[cuda,hpu]: numpy; fault[ipu]: cannot be compiled
        stats = {"loss": loss, "share": float(np.mean(predicted > 0.5))}
        return {"loss": loss, "log_vars": stats, "num_samples": len(kind)}
