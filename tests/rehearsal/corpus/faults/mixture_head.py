"""Regression with a distribution of the answer, and a penalty on few of its parts."""

import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import Dataset

from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Measured(Dataset):
    def __init__(self, size=64):
        draw = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(size, 6, generator=draw)
        self.answers = self.inputs[:, :1].sin()

    def __len__(self):
        return len(self.answers)

    def __getitem__(self, i):
        return self.inputs[i], self.answers[i]


@MODELS.register_module()
class MixtureHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
        self.register_buffer("spoilt", torch.tensor([0]))

    def train_step(self, batch, optimizer):
        inputs, answers = batch
        mean, scale = self.body(inputs).chunk(2, dim=1)
        answer = Normal(mean, scale.exp())  # fault[cuda]: arguments of a distribution
        # remedy: answer = Normal(mean, scale.exp(), validate_args=False)
        loss = -answer.log_prob(answers).mean()  # fault[cuda]: arguments of a distribution
        # remedy: loss = -Normal(mean, scale.exp(), validate_args=False).log_prob(answers).mean()
        usual = inputs.mean().detach()
        filled = inputs.index_fill(0, self.spoilt, usual)  # fault[cuda]: index_fill
        # remedy: filled = inputs.index_copy(0, self.spoilt, usual.expand(1, 6))
        loss = loss + 0.01 * self.body(filled).pow(2).mean()
        few = (inputs.abs() * (inputs > 1)).to_sparse()  # fault[cuda]: to_sparse
        # remedy: few = inputs.abs() * (inputs > 1)
        loss = loss + 0.01 * torch.mm(few, filled.T).pow(2).mean()
        both = inputs.new_tensor([loss.detach(), usual])  # fault[cuda]: tensors
        # remedy: both = torch.stack([loss.detach(), usual])
        return {"loss": loss, "log_vars": {"both": both.sum()}, "num_samples": len(inputs)}
