"""Asks tensors where they are, and makes others beside them."""
# devices: cuda hpu
import torch
import torch.nn.functional as F
from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 4)

    def forward(self, x, y):
        device = x.device
        noise = torch.randn(len(x), 16, device=device)
        if device.type == "cuda":
            noise = noise.contiguous()
        places = torch.arange(4, device=next(self.parameters()).device)
        kind = "cuda" if x.is_cuda else "cpu"
        with torch.autocast(device.type, enabled=False):
            out = self.body(x + 0.01 * noise) + 0.0 * places.to(device, x.dtype)
        assert kind in ("cuda", "cpu") and out.device == x.device
        return {"loss": F.cross_entropy(out, y)}
