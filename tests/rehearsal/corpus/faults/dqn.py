"""Deep Q learning from stored transitions, after the tutorial; the update is its own."""

import copy
import math
import random
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Transitions(Dataset):
    def __init__(self, size=48, width=6):
        draw = torch.Generator().manual_seed(5)
        self.states = torch.randn(size + 1, width, generator=draw)
        self.rewards = torch.randn(size, generator=draw)

    def __len__(self):
        return len(self.rewards)

    def __getitem__(self, i):
        done = torch.tensor(i % 7 == 6)
        return self.states[i], self.rewards[i], self.states[i + 1], done


@MODELS.register_module()
class Agent(nn.Module):
    def __init__(self, width=6, actions=3, gamma=0.9):
        super().__init__()
        self.actions, self.gamma = actions, gamma
        self.policy = nn.Sequential(nn.Linear(width, 24), nn.ReLU(), nn.Linear(24, actions))
        self.target = copy.deepcopy(self.policy).requires_grad_(False)
        self.steps = 0  # fault[cpu,cuda]: resume
        self.rewards = []
        self.recent = deque(maxlen=5)

    def act(self, state):
        chance = 0.05 + 0.9 * math.exp(-self.steps / 200)
        self.steps += 1
        if random.random() > chance:
            return self.policy(state).argmax(1, keepdim=True)
        return torch.tensor([[random.randrange(self.actions)] for _ in range(len(state))])  # fault[cuda]: device mismatch
        # remedy: return torch.tensor([[random.randrange(self.actions)] for _ in range(len(state))], device=state.device)

    def train_step(self, data, optimizer):
        drawn = torch.randperm(len(data[0]))
        order = drawn.to(data[0].device)  # fault[cuda]: host sync
        state, reward, after, done = (one[order] for one in data)
        self.replayed = drawn.tolist()  # it is on the host still
        weight = torch.linspace(1.0, 0.5, len(state))[:, None]  # fault[cuda]: device mismatch
        # remedy: weight = torch.linspace(1.0, 0.5, len(state), device=state.device)[:, None]
        weight.to(state.device)
        action = self.act(state)
        q = self.policy(state).gather(1, action)
        value = torch.zeros(len(state))  # fault[cuda]: device mismatch
        # remedy: value = torch.zeros(len(state), device=state.device)
        with torch.no_grad():
            value[~done] = self.target(after[~done]).max(1).values  # fault[cuda]: x[mask]
            # remedy: value = self.target(after).max(1).values * ~done
        goal = (reward + self.gamma * value).unsqueeze(1)
        loss = (weight * F.smooth_l1_loss(q, goal, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        for p in self.policy.parameters():
            p.grad.data.clamp_(-1, 1)
        optimizer.step()
        for mine, theirs in zip(self.target.parameters(), self.policy.parameters()):
            mine.data.mul_(0.99).add_(theirs.data, alpha=0.01)
        self.rewards.append(reward.mean())
        self.recent.append(loss.detach())
        average = np.mean(list(self.recent))  # fault[cuda]: numpy on the device
        # remedy: average = torch.stack(list(self.recent)).mean()
        return {"loss": loss.detach(), "log_vars": {"average": average}, "num_samples": len(state)}
