"""Objects as points: a heat map of centers for each kind, drawn from the boxes of a batch."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Boxes(Dataset):
    def __init__(self, size=32, most=4):
        self.size, self.most = size, most

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        boxes = torch.rand(self.most, 4, generator=draw) * 0.9
        boxes[1 + i % 3 :] = 0
        kinds = torch.randint(0, 3, (self.most,), generator=draw)
        return {"image": torch.randn(3, 32, 32, generator=draw), "boxes": boxes, "kinds": kinds}


def draw_heat(boxes, kinds, many, size):
    heat = torch.zeros(len(boxes), many, size, size)  # fault[cuda]: device mismatch
    # remedy: heat = torch.zeros(len(boxes), many, size, size, device=boxes.device)
    for b, row in enumerate(boxes):
        for box, kind in zip(row, kinds[b]):
            if box[2] == 0:  # fault[cuda]: host sync
            # remedy: if False:
                continue
            x, y = int(box[0] * size), int(box[1] * size)  # fault[cuda]: int()
            # remedy: x, y = (box[:2] * size).long()
            heat[b, kind, y, x] = 1.0  # fault[cuda]: host sync
            # remedy: heat[b].view(-1).scatter_(0, ((kind * size + y) * size + x)[None], 1.0)
    return heat


def focal(out, heat):
    good, bad = heat.eq(1).float(), heat.lt(1).float()
    near = (torch.log(out) * (1 - out) ** 2 * good).sum()
    far = (torch.log(1 - out) * out**2 * (1 - heat) ** 4 * bad).sum()
    many = good.sum()
    if many == 0:  # fault[cuda]: host sync
    # remedy: if False:
        return -far
    return -(near + far) / many


@MODELS.register_module()
class CenterNet(nn.Module):
    def __init__(self, kinds=3, width=8):
        super().__init__()
        self.many = kinds
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU())
        self.heat = nn.Conv2d(width, kinds, 1)
        self.wh = nn.Conv2d(width, 2, 1)
        self.offset = nn.Conv2d(width, 2, 1)  # fault[cpu]: no gradient
        # remedy: -
        self.best = None

    def forward(self, image, boxes, kinds):
        h = self.stem(image)
        out = self.heat(h).sigmoid().clamp(1e-4, 1 - 1e-4)
        heat = draw_heat(boxes, kinds, self.many, out.shape[-1])
        sizes = self.wh(h).flatten(2).mean(2)
        loss = focal(out, heat) + 0.1 * F.l1_loss(sizes, boxes[..., 2:].mean(1))
        self.best = out.detach().flatten(1).topk(3).values
        return {"loss": loss, "logits": out}


@HOOKS.register_module()
class ShowBest(Hook):
    def after_train_iter(self, runner):
        best = runner.model.best
        self.text = "best {:.3f}".format(best[0, 0])  # fault[cuda]: f-string
        # remedy: self.text = best[0, 0]
