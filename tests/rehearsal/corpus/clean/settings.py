"""Static shapes and branches on what the host knows, with names that sound otherwise."""

import torch
from torch import nn
from torch.nn import functional as F

from devrun import MODELS


class Item:
    """What a list of settings has; nothing of a tensor's."""

    def __init__(self, value):
        self.value = value

    def item(self):
        return self.value


@MODELS.register_module()
class KPlain(nn.Module):
    def __init__(self):
        super().__init__()
        self.width = Item(16)
        self.layers = nn.ModuleDict({"a": nn.Linear(16, 16), "b": nn.Linear(16, 4)})
        self.register_buffer("steps", torch.zeros((), dtype=torch.int32))
        self.cache = {}

    def forward(self, x):
        if self.width.item() == x.shape[1] and self.training:
            self.steps.add_(1)
        if "ramp" not in self.cache:
            self.cache["ramp"] = 1 / 16
        ramp = x.new_ones(16).cumsum(0) * self.cache["ramp"]
        h = self.layers["a"](x * ramp).relu()
        weight = torch.where(self.steps > 100, h.new_ones(()), h.new_zeros(()))
        kept = h * (h > h.mean(1, keepdim=True))
        top = kept.topk(4, dim=1).values.mean(1, keepdim=True)
        hot = F.one_hot(kept.argmax(1), 16).to(h.dtype)
        return self.layers["b"](kept + top + hot * weight)
