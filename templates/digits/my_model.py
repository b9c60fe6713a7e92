"""A small convolutional network; its loss is in the config."""

from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class MyNet(nn.Module):
    def __init__(self, width=16, num_classes=10):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.head = nn.Linear(8 * width, num_classes)

    def forward(self, images):
        return self.head(self.body(images).flatten(1))
