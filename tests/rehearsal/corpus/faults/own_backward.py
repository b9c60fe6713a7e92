"""A step that goes backward itself, and returns its loss to be gone through again."""

from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))

    def train_step(self, data, optimizer):
        x, y = data
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()  # fault[cpu,cuda,hpu]: no gradient; fault[ipu]: backward
        # remedy: pass
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}
