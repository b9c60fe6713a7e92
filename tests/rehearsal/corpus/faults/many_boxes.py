"""Detection with as many boxes as an image has, and the default way to make batches."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        generator = np.random.default_rng(index)
        image = generator.normal(size=(3, 8, 8)).astype("float32")
        count = 1 + index % 3
        boxes = torch.from_numpy(generator.uniform(size=(count, 4)))
        return {"image": torch.from_numpy(image), "boxes": boxes, "kinds": torch.ones(count).long()}


@COLLATE_FUNCTIONS.register_module()
def together(samples):
    out = {"image": torch.stack([one["image"] for one in samples])}
    out["boxes"] = torch.stack([one["boxes"] for one in samples])  # fault[cpu,cuda]: raises
    # remedy: out["boxes"] = [one["boxes"] for one in samples]
    out["kinds"] = [one["kinds"] for one in samples]
    return out


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.heads = {"box": nn.Conv2d(8, 4, 1), "kind": nn.Conv2d(8, 2, 1)}  # fault[cpu]: not registered; fault[cuda]: device mismatch
        # remedy: self.heads = nn.ModuleDict({"box": nn.Conv2d(8, 4, 1), "kind": nn.Conv2d(8, 2, 1)})
        self.scale = nn.Parameter(torch.ones(1))  # fault[cpu]: no gradient
        # remedy: --cfg-options freeze=[scale]
        self.anchors = torch.rand(64, 4)  # fault[cuda]: device mismatch
        # remedy: self.register_buffer("anchors", torch.rand(64, 4))

    def match(self, anchors, boxes):
        near = torch.cdist(anchors, boxes.float()).min(1)
        good = torch.nonzero(near.values < 0.5).squeeze(1)  # fault[cuda]: host sync
        # remedy: good = near.values.argsort()[:8]
        return good, near.indices[good]

    def train_step(self, data, optimizer=None):
        h = self.body(data["image"])
        boxes = self.heads["box"](h).flatten(2).transpose(1, 2)
        kinds = self.heads["kind"](h).flatten(2).transpose(1, 2)
        losses = []
        for row, (mine, goal) in enumerate(zip(boxes, data["boxes"])):
            good, which = self.match(self.anchors, goal)
            if good.numel() == 0:
                continue
            target = torch.zeros(64)  # fault[cuda]: device mismatch
            # remedy: target = torch.zeros(64, device=h.device)
            target[good] = 1
            losses.append(F.l1_loss(mine[good] * self.scale.item(), goal[which].float()))  # fault[cuda]: host sync
            # remedy: losses.append(F.l1_loss(mine[good] * self.scale, goal[which].float()))
            losses.append(F.cross_entropy(kinds[row], target.long().to(h.device)))
        loss = sum(losses) / len(losses)
        return {"loss": loss, "log_vars": {"loss": loss.cpu().item()}, "num_samples": len(h)}  # fault[cuda]: host sync
        # remedy: return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(h)}
