"""Topics of papers from who cites whom: a graph network on samples of the graph."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Neighbours(Dataset):
    def __init__(self, size=24, nodes=20, edges=60, width=8, topics=4):
        self.size, self.nodes, self.edges, self.width, self.topics = size, nodes, edges, width, topics

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        x = torch.randn(self.nodes, self.width, generator=draw)
        edge_index = torch.randint(self.nodes, (2, self.edges), generator=draw)
        edge_index[:, -1] = self.nodes - 1
        y = x[:, : self.topics].argmax(1)
        return {"x": x, "edge_index": edge_index, "y": y, "train_mask": torch.rand(self.nodes, generator=draw) < 0.5}


def maybe_num_nodes(edge_index):
    # torch_geometric/utils/num_nodes.py; poptorch_geometric's guide asks to pass num_nodes instead
    return int(edge_index.max()) + 1  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
    # remedy: return 20


def add_self_loops(edge_index, nodes):
    # torch_geometric/utils/loop.py, remove_remaining_self_loops
    keep = edge_index[0] != edge_index[1]
    edge_index = edge_index[:, keep]  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
    # remedy: edge_index = edge_index.contiguous()
    loop_index = torch.arange(nodes).unsqueeze(0).repeat(2, 1)  # fault[cuda,hpu]: device mismatch
    # remedy: loop_index = torch.arange(nodes, device=edge_index.device).unsqueeze(0).repeat(2, 1)
    return torch.cat([edge_index, loop_index], dim=1)


class GCNConv(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.linear = nn.Linear(inside, outside, bias=False)

    def forward(self, x, edge_index):
        source, target = edge_index[0], edge_index[1]
        ones = torch.ones(source.shape[0], device=x.device)
        degree = torch.zeros(x.shape[0], device=x.device).scatter_add(0, target, ones)
        weight = degree.clamp(min=1).rsqrt()
        message = self.linear(x)[source] * (weight[source] * weight[target])[:, None]
        return torch.zeros_like(message[: x.shape[0]]).scatter_add(0, target[:, None].expand_as(message), message)


@MODELS.register_module()
class GCN(nn.Module):
    def __init__(self, width=8, hidden=16, topics=4):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(width, hidden), GCNConv(hidden, topics)

    def train_step(self, data, optimizer):
        x, edge_index, y, train_mask = (one.squeeze(0) for one in data.values())
        nodes = maybe_num_nodes(edge_index)
        edge_index = add_self_loops(edge_index, nodes)
        x = F.dropout(F.relu(self.conv1(x, edge_index)), training=self.training)
        out = F.log_softmax(self.conv2(x, edge_index), dim=1)
        # pyg's examples/gcn.py
        loss = F.nll_loss(out[train_mask], y[train_mask])  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        # remedy: loss = (F.nll_loss(out, y, reduction="none") * train_mask).sum() / train_mask.sum()
        correct = ((out.argmax(1) == y) & train_mask).sum()
        acc = int(correct) / int(train_mask.sum())  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        # remedy: acc = correct / train_mask.sum()
        return {"loss": loss, "log_vars": {"loss": loss, "acc": acc}, "num_samples": 1}
