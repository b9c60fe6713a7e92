"""A residual network with batch norm, dropout and pooling."""

from torch import nn
from torch.nn import functional as F

from devrun.registry import MODELS

# devices: hpu ipu


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.pool, self.drop = nn.AdaptiveAvgPool2d(1), nn.Dropout(0.2)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        h = self.stem(x)
        h = F.relu(h + self.block(h))
        return self.last(self.drop(self.pool(h).flatten(1)))
