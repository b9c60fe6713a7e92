"""A regressor whose author watches it: a bar, the state of the GPU, a hunt for NaNs."""

import torch
from torch import nn
from tqdm import tqdm

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@MODELS.register_module()
class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        shift = torch.zeros(4, device=x.get_device())  # fault[cpu]: hard
        # remedy: shift = torch.zeros(4, device=x.device)
        return self.net(x) + shift


@HOOKS.register_module()
class Bar(Hook):
    def before_run(self, runner):
        torch.autograd.set_detect_anomaly(True)  # fault[cpu]: anomaly mode
        # remedy: torch.autograd.set_detect_anomaly(False)
        self.bar = tqdm(total=6)

    def after_train_iter(self, runner):
        torch.cuda.empty_cache()  # fault[cuda]: empty_cache
        # remedy: pass
        self.bar.set_postfix(loss=runner.outputs["loss"])  # fault[cuda,hpu]: print
        # remedy: self.bar.set_postfix(iteration=runner.iter)


@HOOKS.register_module()
class State(Hook):
    def after_train_epoch(self, runner):
        if torch.cuda.is_available():
            stats = torch.cuda.memory_stats()["allocated_bytes.all.peak"]
            known = torch.cuda.utilization(), torch.cuda.memory_summary(), stats
            self.text = f"{known} {torch.cuda.is_bf16_supported()}"
        self.drawn = torch.cuda.get_rng_state()  # fault[cpu,hpu]: hard
        # remedy: self.drawn = torch.get_rng_state()
