"""Masked words with an Adafactor of one's own, and hooks that look at gradients and memory."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS, OPTIMIZERS

VOCAB, MASK, LENGTH = 40, 39, 12


@DATASETS.register_module()
class Lines(Dataset):
    def __init__(self, size=40):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return {"input_ids": torch.randint(1, MASK, (LENGTH,), generator=torch.Generator().manual_seed(i))}


@OPTIMIZERS.register_module()
class Adafactor(torch.optim.Optimizer):
    """After fairseq's first version (github.com/facebookresearch/fairseq, optim/adafactor.py)."""

    def __init__(self, params, lr=0.01, eps=(1e-30, 1e-3), clip_threshold=1.0, decay_rate=-0.8):
        super().__init__(params, {"lr": lr, "eps": eps, "clip_threshold": clip_threshold, "decay_rate": decay_rate})

    def _rms(self, tensor):
        return tensor.norm(2) / (tensor.numel() ** 0.5)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if len(state) == 0:
                    state["step"] = 0
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
                beta2t = 1.0 - state["step"] ** group["decay_rate"]
                update = p.grad.square() + group["eps"][0]
                state["exp_avg_sq"].mul_(beta2t).add_(update, alpha=1.0 - beta2t)
                update = state["exp_avg_sq"].rsqrt() * p.grad
                update.div_(max(1.0, self._rms(update) / group["clip_threshold"]))  # fault[cuda,hpu]: host
                scale = max(group["eps"][1], self._rms(p))  # fault[cuda,hpu]: host
                p.sub_(update * (group["lr"] * scale))


@MODELS.register_module()
class MaskedLM(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, width), nn.Parameter(torch.zeros(LENGTH, width))
        self.mix = nn.Sequential(nn.Linear(LENGTH, LENGTH), nn.GELU(), nn.Linear(LENGTH, LENGTH))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB)

    def mask_tokens(self, inputs):
        """As in transformers' run_lm_finetuning.py, on the batch."""
        probability_matrix = torch.full(inputs.shape, 0.15)  # fault[cuda,hpu]: device mismatch
        masked_indices = torch.bernoulli(probability_matrix).bool()
        labels = torch.where(masked_indices, inputs, -100)
        return torch.where(masked_indices, MASK, inputs), labels

    def train_step(self, data, optimizer=None):
        inputs, labels = self.mask_tokens(data["input_ids"])
        h = self.words(inputs) + self.places
        h = self.norm(h + self.mix(h.transpose(1, 2)).transpose(1, 2))
        loss = F.cross_entropy(self.head(h).flatten(0, 1), labels.flatten(), ignore_index=-100)
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(inputs)}


@HOOKS.register_module()
class GradientNorms(Hook):
    """The norm of each gradient, for a page of plots."""

    def __init__(self):
        self.norms = {}

    def after_backward(self, runner):
        for name, p in runner.model.named_parameters():
            if p.grad is not None:
                self.norms.setdefault(name, []).append(float(p.grad.data.norm(2)))  # fault[cuda,hpu]: host


@HOOKS.register_module()
class PeakMemory(Hook):
    """The most memory of each update, as Megatron-LM's training logs have it."""

    def after_train_iter(self, runner):
        peak = torch.cuda.max_memory_allocated() / 2**20
        runner.log_buffer.update({"peak_mib": peak})
        torch.cuda.reset_peak_memory_stats()  # fault[cpu,hpu,ipu]: cuda
