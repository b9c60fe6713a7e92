"""Spoken commands with a GRU, moved from a code base for one GPU of 2019."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Commands(Dataset):
    def __init__(self, size=48):
        draw = torch.Generator().manual_seed(5)
        self.frames = torch.randn(size, 20, 10, generator=draw)
        self.command = torch.randint(0, 6, (size,), generator=draw)

    def __len__(self):
        return len(self.command)

    def __getitem__(self, i):
        frames = self.frames[i].double()
        return {"frames": frames, "command": self.command[i]}  # fault[hpu]: float64
        # remedy: return {"frames": frames.float(), "command": self.command[i]}


@MODELS.register_module()
class CommandGru(nn.Module):
    def __init__(self, width=16, commands=6):
        super().__init__()
        self.width = width
        self.gru = nn.GRU(10, width, batch_first=True)
        self.head = nn.Linear(width, commands)

    def start(self, n):
        zeros = torch.zeros(1, n, self.width)
        return zeros.cuda()  # fault[cpu,hpu]: hard-wired cuda; fault[cuda]: host sync
        # remedy[cpu,hpu]: return zeros.to(self.head.weight.device)
        # remedy[cuda]: return torch.zeros(1, n, self.width, device=self.head.weight.device)

    def forward(self, frames, command):
        frames = frames.float()
        if self.training:
            noise = torch.cuda.FloatTensor(frames.shape)  # fault[cpu,hpu]: hard-wired cuda
            # remedy: noise = torch.empty_like(frames)
            frames = frames + 0.05 * noise.normal_()
        out, _ = self.gru(frames, self.start(len(frames)))
        wave, window = frames[..., 0], torch.hann_window(8)  # fault[cuda,hpu]: device mismatch
        # remedy: wave, window = frames[..., 0], torch.hann_window(8, device=frames.device)
        told = {"window": window, "return_complex": True}
        power = torch.stft(wave, 8, 4, **told)  # fault[hpu]: on the host
        logits = self.head(out[:, -1]) + power.abs().mean((1, 2))[:, None]
        loss = F.cross_entropy(logits, command)
        self.told = logits.detach(), command
        return {"loss": loss}


@HOOKS.register_module()
class Watch(Hook):
    def after_train_iter(self, runner):
        torch.cuda.synchronize()  # fault[cpu,cuda,hpu]: cuda
        # remedy: -
        logits, command = runner.model.told
        right = (logits.argmax(1) == command).sum().item()  # fault[cuda,hpu]: host
        # remedy: right = (logits.argmax(1) == command).sum()
        norm = 0.0
        for p in runner.model.parameters():
            norm += p.grad.norm(2).item() ** 2  # fault[cuda,hpu]: host
            # remedy: norm = norm + p.grad.norm(2) ** 2
        runner.log_buffer.update({"right": right, "norm": norm**0.5})
