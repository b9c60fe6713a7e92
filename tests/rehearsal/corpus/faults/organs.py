"""Organs in small volumes: weights of voxels from the loader, a Dice loss of all classes, overlaps by numpy."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Organs(Dataset):
    def __init__(self, size=24, side=8, classes=3):
        self.size, self.side, self.classes = size, side, classes

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        rng = np.random.RandomState(index)
        mask = rng.randint(0, self.classes, (self.side,) * 3)
        scan = mask[None] + 0.2 * rng.randn(1, *mask.shape)
        weight = np.where(mask > 0, 2.0, 0.5)
        return {
            "image": torch.tensor(scan, dtype=torch.float32),
            "mask": torch.tensor(mask),
            "weight": torch.tensor(weight),  # fault[hpu]: float64
        }


def dice_loss(true, logits, eps=1e-7):
    """Overlaps of the classes that are there."""
    classes = logits.shape[1]
    true_1_hot = F.one_hot(true, classes).permute(0, 4, 1, 2, 3).to(logits.dtype)
    probas = F.softmax(logits, dim=1)
    # github.com/ultralytics/yolov5 has torch.zeros(1, device=device) for each of its sums
    loss, seen = torch.zeros(1), 0  # fault[cuda,hpu]: device mismatch
    for c in range(classes):
        # github.com/kevinzakka/pytorch-goodies and its forks leave out what is absent
        if true_1_hot[:, c].sum() == 0:  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
            continue
        both = (probas[:, c] * true_1_hot[:, c]).sum()
        loss = loss + 1 - 2 * both / ((probas[:, c] + true_1_hot[:, c]).sum() + eps)
        seen += 1
    return (loss / max(seen, 1)).squeeze()


@MODELS.register_module()
class OrganNet(nn.Module):
    def __init__(self, classes=3, width=8):
        super().__init__()
        self.enter = nn.Sequential(nn.Conv3d(1, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU())
        self.blocks = [nn.Conv3d(width, width, 3, padding=1) for _ in range(2)]  # fault[cpu]: not registered; fault[cuda,hpu,ipu]: device mismatch
        self.out = nn.Conv3d(width, classes, 1)
        self.running = None

    def forward(self, x):
        h = self.enter(x)
        for block in self.blocks:
            h = h + F.relu(block(h))
        return self.out(h)

    def train_step(self, data, optimizer):
        logits = self(data["image"])
        entropy = F.cross_entropy(logits, data["mask"], reduction="none")
        loss = (entropy * data["weight"]).mean().float() + dice_loss(data["mask"], logits)
        # discuss.pytorch.org, "Why does the training get slower": sums that keep their graphs
        self.running = loss if self.running is None else 0.9 * self.running + 0.1 * loss  # fault[cpu,cuda,hpu]: kept; fault[ipu]: once
        logs = {"loss": loss.detach(), "smooth": self.running.detach()}
        return {"loss": loss, "log_vars": logs, "num_samples": len(logits), "logits": logits.detach()}


@HOOKS.register_module()
class Overlap(Hook):
    def after_train_iter(self, runner):
        logits = runner.outputs["logits"]  # fault[ipu]: raises
        prediction = np.asarray(logits.argmax(1).cpu())  # fault[cuda,hpu]: host
        shares = np.bincount(prediction.ravel(), minlength=3) / prediction.size
        runner.log_buffer.update({"background": float(shares[0])})
