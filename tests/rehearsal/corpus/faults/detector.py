"""A head that keeps the best boxes, with as many rows as there are."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, padding=1)
        self.boxes, self.scores = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 1, 1)
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        h = self.body(x).relu()
        boxes = self.boxes(h).flatten(2).transpose(1, 2).reshape(-1, 4)
        scores = self.scores(h).flatten()
        good = boxes[scores > 99]  # fault[cuda]: x[mask]
        # remedy: good = torch.where(scores[:, None] > 99, boxes, 0)
        places = torch.where(scores > 99)  # fault[cuda]: where
        # remedy: places = (scores > 99,)
        chosen = torch.masked_select(scores, scores > 99)  # fault[cuda]: masked_select
        # remedy: chosen = torch.where(scores > 99, scores, 0)
        order = scores.argsort(descending=True)[:4]
        kept = []
        for one in order.tolist():  # fault[cuda]: .tolist()
            # remedy: for one in order:
            kept.append(boxes[one])
        kinds = scores.gt(0).long().unique()  # fault[cuda]: unique
        # remedy: kinds = scores.gt(0).long().sort()[0]
        many = torch.bincount(scores.gt(0).long())  # fault[cuda]: bincount
        # remedy: many = torch.stack([scores.gt(0).sum(), scores.le(0).sum()])
        while scores.max() > 1e9:  # fault[cuda]: host sync
            # remedy: while False:
            scores = scores / 2
        out = self.head(boxes.reshape(len(x), -1, 4).mean(1) + scores.mean())
        rest = good.sum() + chosen.sum() + torch.stack(kept).sum() + many.sum()
        return out + 0 * (rest + len(places) + len(kinds))
