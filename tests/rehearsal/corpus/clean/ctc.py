"""Speech without alignments, with lengths on the host, where torch reads them."""

import torch
from torch import nn

from devrun.registry import MODELS

# devices: cuda


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 6)
        self.loss = nn.CTCLoss()

    def forward(self, x, y):
        out = self.head(x.view(len(x), 8, 2)).log_softmax(-1).transpose(0, 1)
        lengths = torch.full((len(x),), 8)
        return {"loss": self.loss(out, y[:, None] + 1, lengths, lengths // 8)}
