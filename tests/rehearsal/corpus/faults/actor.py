"""A policy and a value, on a world of rows that the step plays through."""

import torch
from torch import nn
from torch.distributions import Categorical, Normal

from devrun.hooks import HOOKS, Hook
from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.pi = nn.Linear(16, 8), nn.Linear(8, 4)
        self.value, self.spread = nn.Linear(8, 1), nn.Parameter(torch.zeros(1))
        self.replay = []

    def train_step(self, data, optimizer):
        x, y = data
        h = torch.tanh(self.body(x))
        policy = Categorical(logits=self.pi(h), validate_args=False)
        action = torch.multinomial(policy.probs, 1).squeeze(1)  # fault[ipu]: cannot be compiled
        # remedy: action = policy.probs.argmax(1)
        reward = torch.zeros(len(x))  # fault[cuda,hpu]: device mismatch
        # remedy: reward = torch.zeros(len(x), device=x.device)
        reward = reward + (action == y).float()
        value = self.value(h).squeeze(1)
        noise = Normal(value, self.spread.exp())  # fault[cuda,hpu]: host
        # remedy: noise = Normal(value, self.spread.exp(), validate_args=False)
        gain = (reward - value).detach()
        self.replay.append(value)  # fault[cuda,hpu]: kept graph; fault[ipu]: once
        # remedy: self.last = 0
        for one in gain:
            if one > 10:  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
                # remedy: if False:
                gain = gain / 10
        loss = -(policy.logits.gather(1, action[:, None])[:, 0] * gain).mean()
        loss = loss + (reward - value).square().mean() - 0.01 * noise.entropy().mean()
        stats = {"loss": loss, "reward": reward.mean().item()}  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        # remedy: stats = {"loss": loss, "reward": reward.mean()}
        return {"loss": loss, "log_vars": stats, "num_samples": len(x)}


@HOOKS.register_module()
class Norms(Hook):
    def after_train_iter(self, runner):
        weights = torch.cat([p.detach().flatten() for p in runner.model.parameters()])
        self.largest = weights.abs().max().numpy()  # fault[cuda,hpu]: numpy
        # remedy: self.largest = weights.abs().max()
