"""Segmentation with deep supervision, hard pixels by topk, an optimizer hook's state that is saved, odd sizes."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, LOSSES, METRICS, MODELS

# devices: cpu cuda hpu


@DATASETS.register_module()
class Shapes(Dataset):
    def __init__(self, size=26):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        image = torch.randn(1, 9, 9, generator=g)
        goal = (image[0] > 0).long()
        goal[0] = 255
        return image, goal


@MODELS.register_module()
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU())
        self.heads = nn.ModuleList([nn.Conv2d(8, 2, 1), nn.Conv2d(8, 2, 1)])

    def forward(self, x):
        a = self.a(x)
        b = self.b(a)
        outs = [head(h) for head, h in zip(self.heads, (a, b))]
        outs = [F.interpolate(o, x.shape[-2:], mode="bilinear", align_corners=False) for o in outs]
        return torch.stack(outs) if self.training else outs[0]


@LOSSES.register_module()
class Hardest(nn.Module):
    def __init__(self, share=0.5):
        super().__init__()
        self.share = share

    def forward(self, outs, goal):
        outs = outs if outs.dim() == 5 else outs[None]
        total = 0.0
        for weight, out in zip((1.0, 0.4), outs):
            each = F.cross_entropy(out, goal, ignore_index=255, reduction="none").flatten(1)
            kept = each.topk(int(each.shape[1] * self.share), 1).values
            total = total + weight * kept.mean()
        return total


@METRICS.register_module()
class IoU:
    def __init__(self):
        self.reset()

    def reset(self):
        self.both, self.any = 0, 0

    def update(self, scores, goal):
        said = scores.argmax(1)
        known = goal != 255
        self.both = self.both + ((said == 1) & (goal == 1) & known).sum()
        self.any = self.any + (((said == 1) | (goal == 1)) & known).sum()

    def compute(self):
        return self.both / max(int(self.any), 1)


@HOOKS.register_module()
class Smooth(Hook):
    def __init__(self):
        self.mean = None

    def after_train_iter(self, runner):
        loss = runner.outputs["loss"].detach()
        self.mean = loss if self.mean is None else 0.9 * self.mean.to(loss.device) + 0.1 * loss
        runner.log_buffer.update({"smooth": self.mean})

    def state_dict(self):
        return {} if self.mean is None else {"mean": self.mean.cpu()}

    def load_state_dict(self, state):
        self.mean = state.get("mean")
