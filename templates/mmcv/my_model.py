"""A model of MMCV 1.x's kind: `train_step` gives loss, log_vars and num_samples."""

from torch import nn
from torch.nn.functional import cross_entropy

from devrun.registry import MODELS


@MODELS.register_module()
class MyClassifier(nn.Module):
    def __init__(self, width=64, num_classes=10):
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, num_classes)
        )

    def forward(self, img):
        return self.net(img)

    def train_step(self, data, optimizer):
        scores = self(data["img"])
        loss = cross_entropy(scores, data["gt_label"])
        accuracy = (scores.argmax(1) == data["gt_label"]).float().mean()
        log_vars = {"loss": loss.detach(), "accuracy": accuracy}
        return {"loss": loss, "log_vars": log_vars, "num_samples": len(scores)}

    val_step = train_step
