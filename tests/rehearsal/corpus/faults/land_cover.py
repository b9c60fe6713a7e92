"""Land cover of satellite tiles: a loss with weights of classes, and the IoU."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS

CLASSES = 4


@DATASETS.register_module()
class Tiles(Dataset):
    def __init__(self, size=48):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        image = torch.randn(3, 12, 12, generator=draw)
        cover = torch.randint(0, CLASSES, (12, 12), generator=draw)
        cover[:2] = 255
        return {"image": image, "cover": cover}


def dice(logits, cover):
    shares = logits.softmax(1).permute(0, 2, 3, 1)
    shares = shares[cover != 255]  # fault[cuda,hpu]: host
    # remedy: shares = shares * (cover != 255)[..., None]
    known = cover[cover != 255]  # fault[cuda,hpu]: host
    # remedy: known = cover.clamp(max=CLASSES - 1)
    goal = torch.eye(CLASSES)[known]  # fault[cuda,hpu]: device mismatch
    # remedy: goal = (known[..., None] == torch.arange(4, device=known.device)).float()
    both = (shares * goal).sum(0)
    return 1 - (2 * both / (shares.sum(0) + goal.sum(0) + 1e-6)).mean()


def confusion(logits, cover):
    said = logits.argmax(1).flatten()
    kept = cover.flatten().clamp(max=CLASSES)
    places = kept * CLASSES + said
    return torch.bincount(places, minlength=5 * CLASSES)  # fault[cuda,hpu]: host
    # remedy: cells = torch.arange(5 * CLASSES, device=places.device)
    # remedy+: return (places[:, None] == cells).sum(0)


@MODELS.register_module()
class CoverNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU())
        self.up = nn.ConvTranspose2d(width, CLASSES, 2, 2)

    def forward(self, image, cover):
        logits = self.up(self.down(image))
        weight = torch.tensor([0.2, 1.0, 1.0, 2.0])  # fault[cuda,hpu]: device mismatch
        # remedy: weight = torch.tensor([0.2, 1.0, 1.0, 2.0], device=image.device)
        loss = F.cross_entropy(logits, cover, weight=weight, ignore_index=255)
        loss = loss + dice(logits, cover)
        with torch.no_grad():
            self.table = confusion(logits, cover)
        return {"loss": loss}


@HOOKS.register_module()
class Iou(Hook):
    def after_train_iter(self, runner):
        table = runner.model.table[: CLASSES * CLASSES].view(CLASSES, CLASSES).float()
        each = table.diag() / (table.sum(0) + table.sum(1) - table.diag() + 1e-6)
        for name, value in zip(["water", "wood", "field", "town"], each):
            runner.log_buffer.update({name: float(value)})  # fault[cuda,hpu]: host
            # remedy: runner.log_buffer.update({name: value})
        torch.cuda.empty_cache()  # fault[cuda]: empty_cache
        # remedy: -
