"""A model that returns its loss without the way back to the weights."""

from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.norm = nn.Linear(16, 4), nn.BatchNorm1d(4)

    def forward(self, x, y):
        out = self.norm(self.net(x))
        loss = F.cross_entropy(out, y)
        right = (out.argmax(1) == y).float().mean()
        loss = loss.detach()  # fault[cpu,cuda,hpu,ipu]: no gradient
        # remedy: -
        return loss + 1, right

    def train_step(self, data, optimizer):
        loss, right = self(*data)
        log_vars = {"loss": loss, "right": right}
        return {"loss": loss, "log_vars": log_vars, "num_samples": len(data[0])}
