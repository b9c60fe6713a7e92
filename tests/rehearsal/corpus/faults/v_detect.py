"""Boxes on a grid of anchors."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun import DATASETS, MODELS


@DATASETS.register_module()
class VBoxes(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        corner = torch.rand(3, 2, generator=draw) * 8
        boxes = torch.cat([corner, corner + 4], 1)
        return torch.rand(3, 16, 16, generator=draw), boxes, torch.tensor([1, 2, 0])


def iou(a, b):
    low = torch.max(a[:, None, :2], b[None, :, :2])
    high = torch.min(a[:, None, 2:], b[None, :, 2:])
    inside = (high - low).clamp(min=0).prod(-1)
    return inside / (32 - inside)


@MODELS.register_module()
class VDetect(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, stride=4, padding=1)
        self.cls = nn.Conv2d(8, 3, 1)
        self.reg = nn.Conv2d(8, 4, 1)
        grid = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4)), -1)
        corner = grid.reshape(-1, 2).float() * 4
        self.register_buffer("anchors", torch.cat([corner, corner + 4], 1))

    def train_step(self, data, optimizer):
        images, boxes, labels = data
        h = F.relu(self.body(images))
        scores = self.cls(h).flatten(2).transpose(1, 2)
        deltas = self.reg(h).flatten(2).transpose(1, 2)
        loss = 0.0 * scores.sum()
        for score, delta, box, label in zip(scores, deltas, boxes, labels):
            overlap, match = iou(self.anchors, box).max(1)
            hits = torch.nonzero(overlap > 0.3).flatten()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
            # remedy: hits = overlap.topk(4).indices
            target = box[match[hits]]
            loss = loss + F.smooth_l1_loss(delta[hits], target)
            if len(label[label > 0]) == 0:  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
                # remedy: if len(label) == 0:
                continue
            wanted = label[match]
            wanted[overlap < 0.1] = 0  # fault[hpu]: host waits
            # remedy: wanted = wanted * (overlap >= 0.1)
            loss = loss + F.cross_entropy(score, wanted)
            best = score.max(1).values
            order = best.tolist()  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
            # remedy: order = [0.0]
            loss = loss + 0 * max(order)
        rows, cols = torch.where(scores[0] > 0)  # fault[hpu]: host waits; fault[ipu]: cannot be compiled
        # remedy: rows, cols = torch.ones_like(scores[0]), torch.ones_like(scores[0])
        loss = loss + 0 * (rows.sum() + cols.sum())
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(images)}
