"""A language model whose state goes on from batch to batch."""

import torch
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 8, batch_first=True)
        self.head = nn.Linear(8, 4)
        self.hidden = None  # fault[cpu,cuda,hpu]: resume
        self.penalty = 0.0

    def forward(self, x):
        out, hidden = self.rnn(x.view(len(x), 4, 4), self.hidden)
        if self.training:
            self.hidden = hidden  # fault[cpu,cuda,hpu]: backward again
            # remedy: self.hidden = tuple(torch.zeros_like(one) for one in hidden)
            self.penalty = self.penalty + out.square().mean()  # fault[cpu,cuda,hpu]: kept graph
            # remedy: self.penalty = out.detach().square().mean()
        return self.head(out[:, -1])
