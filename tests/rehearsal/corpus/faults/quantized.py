"""A quantizer with a backward pass of its own."""
import torch
import torch.nn.functional as F
from torch import nn

from devrun.registry import MODELS


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale.item()  # fault[cuda]: host sync; fault[hpu]: host waits
        return torch.round(x * ctx.scale) / ctx.scale

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        limit = torch.tensor([1.0] * x.shape[1])  # fault[cuda]: device mismatch; fault[hpu]: device mismatch
        # remedy: limit = torch.ones(x.shape[1], device=x.device)
        inside = x.abs() <= limit
        out = grad.clone()
        out[~inside] = grad[~inside] * 0.1  # fault[cuda]: host sync; fault[hpu]: host waits
        return out, None


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 8)
        self.head = nn.Linear(8, 4)
        self.register_buffer("scale", torch.tensor(8.0))

    def forward(self, x):
        return self.head(Round.apply(self.body(x), self.scale))
