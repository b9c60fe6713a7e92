"""Co-teaching: two networks show each other the samples that they trust, in fp16."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Noisy(Dataset):
    def __init__(self, size=48):
        draw = torch.Generator().manual_seed(8)
        self.images = torch.randn(size, 1, 8, 8, generator=draw)
        self.labels = torch.randint(0, 4, (size,), generator=draw)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


def network():
    convolution = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
    return nn.Sequential(
        *convolution, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
    )


def trusted(losses, share=0.75):
    """The places of the samples with small losses."""
    return losses.argsort()[: int(share * len(losses))]


@MODELS.register_module()
class CoTeaching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = network(), network()
        self.scaler = torch.amp.GradScaler("cuda")  # fault[cpu]: hard-wired cuda
        # remedy: self.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def get_extra_state(self):
        return self.scaler.state_dict()

    def set_extra_state(self, state):
        if state:
            self.scaler.load_state_dict(state)

    def train_step(self, data_batch, optimizer, **kwargs):
        x, y = data_batch
        with torch.autocast("cuda", dtype=torch.float16):  # fault[cpu]: hard-wired cuda
            # remedy: if True:
            scores = self.first(x), self.second(x)
        losses = [F.cross_entropy(s.float(), y, reduction="none") for s in scores]
        loss_first = losses[0][trusted(losses[1])].mean()
        loss_second = losses[1][trusted(losses[0])].mean()
        optimizer["first"].zero_grad()
        optimizer["second"].zero_grad()
        self.scaler.scale(loss_first + loss_second).backward()
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)  # fault[cuda]: gradients
        # remedy: [self.scaler.unscale_(one) for one in optimizer.values()]
        # remedy+: nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        self.scaler.step(optimizer["first"])
        self.scaler.step(optimizer["second"])
        self.scaler.update()
        loss = (loss_first + loss_second).detach()
        return {"loss": loss, "log_vars": {}, "num_samples": len(x), "scores": scores}


@HOOKS.register_module()
class Agreement(Hook):
    def after_train_iter(self, runner):
        first, second = (s.argmax(1) for s in runner.outputs["scores"])
        self.share = (first == second).float().mean().item()  # fault[cuda]: host sync
        # remedy: self.share = (first == second).float().mean()
