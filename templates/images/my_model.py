"""A small convolutional network; its loss is in the config."""

from torch import nn

from devrun.registry import MODELS


@MODELS.register_module()
class MyNet(nn.Module):
    def __init__(self, width=16, num_classes=2):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, width, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride=2, padding=1), nn.ReLU()),
            nn.Flatten(),
        )
        self.head = nn.Linear(64 * width, num_classes)

    def forward(self, images):
        return self.head(self.body(images))
