"""A loss made of the accuracy."""

from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def train_step(self, data, optimizer):
        x, y = data
        chosen = self.net(x).argmax(1)  # fault[cpu,cuda,hpu,ipu]: no gradient
        loss = (chosen != y).float().mean()
        return {"loss": loss, "log_vars": {"loss": loss}, "num_samples": len(x)}
