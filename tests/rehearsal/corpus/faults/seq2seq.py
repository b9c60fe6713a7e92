"""A translator with attention, that decodes word by word."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        words = torch.randint(1, 20, (6,), generator=torch.Generator().manual_seed(index))
        return {"source": words, "goal": words.flip(0), "length": torch.tensor(3 + index % 4)}


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.encoder = nn.GRU(8, 8, batch_first=True)
        self.cell = nn.GRUCell(8, 8)
        self.out = nn.Linear(16, 20)

    def train_step(self, data, optimizer):
        goal, length = data["goal"], data["length"]
        states, _ = self.encoder(self.embed(data["source"]))
        keep = torch.arange(6)[None] < length[:, None]  # fault[cuda,hpu]: device mismatch
        # remedy: keep = torch.arange(6, device=length.device)[None] < length[:, None]
        state = states[torch.arange(len(goal), device=goal.device), length - 1]
        word = torch.zeros(len(goal), dtype=torch.long, device=goal.device)
        loss = 0.0
        for turn in range(int(length.max())):  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
            # remedy: for turn in range(6):
            state = self.cell(self.embed(word), state)
            share = (states @ state[:, :, None]).squeeze(2)
            share = share.masked_fill(~keep, -1e4).softmax(1)
            seen = (share[:, None] @ states).squeeze(1)
            scores = self.out(torch.cat([state, seen], 1))
            loss = loss + F.cross_entropy(scores, goal[:, turn], ignore_index=0)
            word = goal[:, turn] if random.random() < 0.5 else scores.argmax(1)  # fault[ipu]: once
            # remedy: word = goal[:, turn]
            if (word == 19).all():  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
                # remedy: if False:
                break
        right = [int(one) for one in (word == goal[:, 0])]  # fault[cuda,hpu]: host; fault[ipu]: cannot be compiled
        # remedy: right = [0]
        logs = {"loss": loss, "right": float(sum(right))}
        return {"loss": loss, "log_vars": logs, "num_samples": len(goal)}
