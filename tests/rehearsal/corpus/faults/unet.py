"""Segmentation with skips, a Dice loss and a look at the scores."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.mid = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Conv2d(11, 4, 1)
        self.step = 0

    def train_step(self, data, optimizer):
        x, y = data
        self.step = self.step + 1  # fault[ipu]: once
        # remedy[ipu]: -
        h = F.relu(self.down(x))
        h, where = F.max_pool2d(h, 2, return_indices=True)  # fault[ipu]: cannot be compiled
        # remedy[ipu]: h, where = F.max_pool2d(h, 2), 0
        h = F.max_unpool2d(self.mid(h), where, 2)  # fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: h = F.interpolate(self.mid(h), scale_factor=2)
        h = torch.cat([self.up(h), x], 1)
        scores = self.out(h)
        goal = y[:, None, None].expand(-1, 8, 8)
        hot = F.one_hot(goal).permute(0, 3, 1, 2)  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        # remedy: hot = F.one_hot(goal, 4).permute(0, 3, 1, 2)
        share = scores.softmax(1)[:, : hot.shape[1]]
        dice = 1 - (2 * (share * hot).sum((2, 3)) / (share + hot).sum((2, 3))).mean()
        bins = torch.histc(share.detach(), 4)  # fault[cuda]: histc; fault[hpu]: on the host; fault[ipu]: cannot be compiled
        # remedy: bins = share.detach()
        print("dice", dice)  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        # remedy: -
        best = scores.argmax(1).cpu().numpy().mean()  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        # remedy: best = 0.0
        table = torch.bincount(goal.flatten() * 4 + scores.argmax(1).flatten())  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        # remedy: table = goal
        loss = F.cross_entropy(scores, goal) + dice + 0 * bins.sum() + 0 * table.sum()
        return {"loss": loss, "log_vars": {"loss": loss, "best": float(best)}, "num_samples": len(x)}
