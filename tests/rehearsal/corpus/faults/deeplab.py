"""A small DeepLab: pooled context, weighted classes, and the intersection over the union."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, LOSSES, MODELS

CRITERION = nn.CrossEntropyLoss(weight=torch.FloatTensor([0.2, 1.0, 2.0]), ignore_index=255)  # fault[cuda]: device mismatch
# remedy: CRITERION = nn.CrossEntropyLoss(ignore_index=255)


@DATASETS.register_module()
class Streets(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        image = torch.randn(3, 16, 16, generator=draw)
        labels = (image.mean(0) * 4).clamp(0, 2).long()
        labels[0, :3] = 255
        return image, labels


@MODELS.register_module()
class DeepLab(nn.Module):
    def __init__(self, kinds=3, width=8):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        self.rates = [nn.Conv2d(width, width, 3, padding=r, dilation=r) for r in (1, 2)]  # fault[cpu]: not registered; fault[cuda]: device mismatch
        # remedy: self.rates = nn.ModuleList([nn.Conv2d(width, width, 3, padding=r, dilation=r) for r in (1, 2)])
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Conv2d(3 * width, kinds, 1)

    def forward(self, x):
        h = self.stem(x)
        pooled = self.pool(h)
        parts = [one(h) for one in self.rates] + [pooled.expand_as(h)]
        out = self.head(torch.cat(parts, 1))
        return F.interpolate(out, size=x.shape[2:], mode="bilinear", align_corners=False)


@LOSSES.register_module()
class DiceAndEntropy(nn.Module):
    def __init__(self, kinds=3):
        super().__init__()
        self.kinds = kinds

    def dice(self, out, target):
        shape = (len(target), self.kinds, *target.shape[1:])
        hot = torch.zeros(shape).scatter_(1, target.unsqueeze(1), 1.0)  # fault[cuda]: device mismatch
        # remedy: hot = torch.zeros(shape, device=out.device).scatter_(1, target.unsqueeze(1), 1.0)
        p = out.softmax(1)
        both = (p * hot).sum((0, 2, 3))
        return 1 - (2 * both / (p.sum((0, 2, 3)) + hot.sum((0, 2, 3)) + 1e-6)).mean()

    def forward(self, out, target):
        clean = target.masked_fill(target == 255, 0)
        return CRITERION(out, target) + self.dice(out, clean)


@HOOKS.register_module()
class MeanIoU(Hook):
    def before_run(self, runner):
        self.loader = DataLoader(Streets(), batch_size=4)

    def after_train_iter(self, runner):
        image, labels = next(iter(self.loader))  # fault[cuda]: device mismatch
        # remedy: image, labels = runner.data_batch
        with torch.no_grad():
            out = runner.model.eval()(image).argmax(1)
        runner.model.train()
        a, b = labels.cpu().numpy().ravel(), out.cpu().numpy().ravel()  # fault[cuda]: .cpu()
        # remedy: if not self.every_n_iters(runner, 50): return
        # remedy+: a, b = labels.cpu().numpy().ravel(), out.cpu().numpy().ravel()
        good = a < 3
        table = np.bincount(3 * a[good] + b[good], minlength=9).reshape(3, 3)
        iou = np.diag(table) / (table.sum(0) + table.sum(1) - np.diag(table) + 1)
        runner.log_buffer.update({"iou": float(iou.mean())})
