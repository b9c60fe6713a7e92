"""Classifies the nodes of a graph on a Gaudi, as a program for a GPU does it."""

import habana_frameworks.torch.core as htcore
import torch
from torch import nn
from torch.nn import functional as F

NODES = 20


class GraphConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(inputs, outputs) * 0.1)

    def forward(self, x, links):
        return torch.spmm(links, x @ self.kernel)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GraphConv(8, 8), GraphConv(8, 3)

    def forward(self, x, links):
        return self.second(F.relu(self.first(x, links)), links)


device = torch.device("hpu")
edges = torch.randint(0, NODES, (2, 60))
links = torch.sparse_coo_tensor(edges, torch.full((60,), 0.3), (NODES, NODES))
links = links.coalesce().to(device)  # fault[hpu]: sparse
# remedy: links = links.to_dense().to(device)
labels = torch.randint(0, 3, (NODES,)).to(device)
ids = torch.arange(NODES).remainder(10).to(device)
rows = nn.Embedding(10, 8, sparse=True).to(device)  # fault[hpu]: sparse
# remedy: rows = nn.Embedding(10, 8).to(device)
model = GCN().to(device)
optimizer = torch.optim.SGD([*model.parameters(), *rows.parameters()], lr=0.1)
kept = (torch.rand(2, 60) > 0.5).to(device)
edges = edges.to(device)
for step in range(6):
    optimizer.zero_grad()
    ones = kept[step % 2].float()
    drawn = torch.sparse_coo_tensor(edges, ones, (NODES, NODES))  # fault[hpu]: sparse
    # remedy: drawn = torch.zeros(NODES, NODES, device=device)
    # remedy+: drawn.index_put_((edges[0], edges[1]), ones, accumulate=True)
    #
    x = rows(ids)
    out = model(x, links) + torch.sparse.mm(drawn, x)[:, :3]
    F.cross_entropy(out, labels).backward()
    htcore.mark_step()
    optimizer.step()
    htcore.mark_step()
