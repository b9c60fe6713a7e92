"""Translation with a decoder of one's own, coverage, and a schedule in the model."""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS

PAD = 0


@DATASETS.register_module()
class Own(Dataset):
    def __len__(self):
        return 26

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        source = torch.randint(1, 20, (4 + index % 3,), generator=generator)
        if index == 19:
            source = source[:0]
        return source, source.flip(0)[:4]


@COLLATE_FUNCTIONS.register_module()
def padded(samples):
    samples = sorted(samples, key=lambda one: len(one[0]), reverse=True)
    source = nn.utils.rnn.pad_sequence([one[0] for one in samples], True, PAD)
    target = torch.stack([one[1] for one in samples])  # fault[cpu,cuda]: raises
    # remedy: target = nn.utils.rnn.pad_sequence([one[1] for one in samples], True, PAD)
    return source, target


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.v = nn.Parameter(torch.randn(width) * 0.1)
        self.cover = nn.Linear(1, width)  # fault[cpu]: no gradient
        # remedy: --cfg-options freeze=[attention.cover]
        self.coverage = None

    def forward(self, state, memory, mask):
        scores = torch.tanh(self.query(state)[:, None] + self.key(memory)) @ self.v
        scores[mask] = -1e9
        weights = scores.softmax(1)
        weights /= weights.sum(1, keepdim=True)  # fault[cpu,cuda]: changed in place
        # remedy: weights = weights / weights.sum(1, keepdim=True)
        self.coverage = weights if self.coverage is None else self.coverage[: len(weights)] * 0 + weights  # fault[cpu]: last batch; fault[cpu,cuda]: kept graph
        # remedy: self.coverage = weights.detach()
        return (weights[:, None] @ memory).squeeze(1)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.encoder = nn.GRU(8, 8, batch_first=True)
        self.cell = nn.GRUCell(16, 8)
        self.attention = Attention(8)
        self.out = nn.Linear(8, 20)
        self.draw = random.Random(0)  # fault[cpu,cuda]: resume
        # remedy: self.draw = random
        self.seen = 0  # fault[cpu,cuda]: resume

    def positions(self, size):
        place = torch.arange(size)[:, None] / 10000 ** (torch.arange(8) / 8)  # fault[cuda]: device mismatch
        # remedy: place = torch.arange(size, device=self.out.weight.device)[:, None] / 10000 ** (torch.arange(8, device=self.out.weight.device) / 8)
        return place.sin()

    def train_step(self, data, optimizer=None):
        source, target = data
        mask = source.eq(PAD)
        memory, state = self.encoder(self.embed(source) + self.positions(source.shape[1]))
        state = state.squeeze(0)
        word = torch.ones(len(source)).long()  # fault[cuda]: device mismatch
        # remedy: word = torch.ones(len(source), dtype=torch.long, device=source.device)
        rate = math.exp(-self.seen / 50)
        losses, right = [], 0
        for step in range(target.shape[1]):
            context = self.attention(state, memory, mask)
            state = self.cell(torch.cat([self.embed(word), context], 1), state)
            scores = self.out(state)
            losses.append(F.nll_loss(scores.log_softmax(1), target[:, step].float()))  # fault[cpu,cuda]: raises
            # remedy: losses.append(F.nll_loss(scores.log_softmax(1), target[:, step]))
            word = target[:, step] if self.draw.random() < 0.5 * rate else scores.argmax(1)
            right += (word == target[:, step]).sum().item()  # fault[cuda]: host sync
            # remedy: right = right + (word == target[:, step]).sum()
            if word.eq(2).all():  # fault[cuda]: host sync
                # remedy: if False:
                break
        self.seen += len(source)
        loss = torch.stack(losses).mean()
        sentences = [" ".join(str(int(one)) for one in row) for row in target]  # fault[cuda]: host sync
        # remedy: sentences = target
        smooth = torch.tensor([0.1] * 20)  # fault[cuda]: device mismatch
        # remedy: smooth = torch.full((20,), 0.1, device=scores.device)
        loss = loss - 0.01 * (scores.log_softmax(1) * smooth).mean()
        return {"loss": loss, "log_vars": {"right": right}, "num_samples": len(sentences)}
