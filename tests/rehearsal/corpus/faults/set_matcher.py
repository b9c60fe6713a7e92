"""A small DETR: queries, a bipartite matching, and its losses."""

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class ThreeBoxes(Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(index)
        boxes = torch.rand(3, 4, generator=gen) * 0.5 + 0.2
        return torch.rand(3, 16, 16, generator=gen), boxes, torch.randint(0, 3, (3,), generator=gen)


class Matcher(nn.Module):
    @torch.no_grad()
    def forward(self, logits, boxes, labels, goals):
        cost_class = torch.stack([-p.softmax(-1)[:, y] for p, y in zip(logits, labels)])
        cost_box = torch.cdist(boxes, goals, p=1)
        cost = (cost_class + 5 * cost_box).cpu()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: cost = torch.zeros(cost_box.shape)
        pairs = [linear_sum_assignment(c) for c in cost]  # fault[ipu]: cannot be compiled
        # remedy: pairs = [(range(3), range(3)) for _ in goals]
        return [(torch.as_tensor(i), torch.as_tensor(j)) for i, j in pairs]  # fault[ipu]: device mismatch
        # remedy: return [(torch.tensor(i), torch.tensor(j)) for i, j in pairs]


@MODELS.register_module()
class TinyDETR(nn.Module):
    def __init__(self, classes=3, queries=6, width=16):
        super().__init__()
        self.backbone = nn.Conv2d(3, width, 4, stride=4)
        layer = nn.TransformerDecoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 1)
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.where = nn.Parameter(torch.randn(16, width) * 0.02)
        self.classify, self.box = nn.Linear(width, classes + 1), nn.Linear(width, 4)
        self.matcher, self.classes = Matcher(), classes
        self.empty_weight = torch.ones(classes + 1)  # fault[hpu,ipu]: device mismatch
        # remedy: self.register_buffer("empty_weight", torch.ones(classes + 1))
        self.empty_weight[-1] = 0.1

    def predict(self, images):
        memory = self.backbone(images).flatten(2).transpose(1, 2) + self.where
        queries = self.queries.expand(len(images), -1, -1)
        h = self.decoder(queries, memory)
        return self.classify(h), self.box(h).sigmoid()

    def train_step(self, data, optimizer):
        images, goals, labels = data
        logits, boxes = self.predict(images)
        pairs = self.matcher(logits, boxes, labels, goals)
        batch = torch.cat([torch.full_like(i, n) for n, (i, _) in enumerate(pairs)])
        source = torch.cat([i for i, _ in pairs])
        target = torch.cat([j for _, j in pairs])
        # optimum-habana, pull request 1998 ("rt-detr: prevent cpu fallback in loss calculation")
        matched = boxes[batch, source]  # fault[hpu]: host
        # remedy: matched = boxes[batch.to(boxes.device), source.to(boxes.device)]
        wanted = torch.full(logits.shape[:2], self.classes)  # fault[hpu]: device mismatch
        # remedy: wanted = torch.full(logits.shape[:2], self.classes, device=logits.device)
        wanted[batch, source] = labels[batch, target]  # fault[hpu]: host
        # remedy: wanted[batch, source] = labels[batch.to(labels.device), target.to(labels.device)]
        # facebookresearch/detr, SetCriterion.forward
        count = torch.as_tensor([labels.numel()], dtype=torch.float, device=logits.device)
        count = torch.clamp(count, min=1).item()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: count = labels.numel()
        loss_box = (matched - goals[batch, target]).abs().sum() / count  # fault[hpu]: host
        # remedy: loss_box = (matched - goals[batch.to(goals.device), target.to(goals.device)]).abs().sum() / count
        loss_class = F.cross_entropy(logits.transpose(1, 2), wanted, self.empty_weight)  # fault[ipu]: cannot be compiled
        # remedy: loss_class = F.cross_entropy(logits.transpose(1, 2), wanted)
        loss = loss_class + 5 * loss_box
        cardinality = (logits.argmax(-1) != self.classes).sum(1).float().mean()
        logs = {"loss": loss.detach(), "cardinality": cardinality}
        return {"loss": loss, "log_vars": logs, "num_samples": len(images)}
