"""Findings in X-rays, several a picture, with a scale of each that is learned."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from torchmetrics.classification import MultilabelAccuracy, MultilabelAUROC

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@DATASETS.register_module()
class Chests(Dataset):
    def __init__(self, size=48, findings=5):
        self.size, self.findings = size, findings

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        draw = torch.Generator().manual_seed(i)
        found = torch.rand(self.findings, generator=draw) < 0.4
        image = torch.randn(1, 16, 16, generator=draw) + found.sum()
        known = torch.rand(self.findings, generator=draw) < 0.8
        return {"image": image, "found": found.float(), "known": known}


@MODELS.register_module()
class ChestNet(nn.Module):
    def __init__(self, findings=5, width=8):
        super().__init__()
        layers = nn.Conv2d(1, width, 3, 2), nn.GroupNorm(2, width), nn.ReLU(), nn.Flatten()
        self.body = nn.Sequential(*layers, nn.Dropout(0.4))
        self.head = nn.Linear(width * 49, findings)
        self.scale = nn.Parameter(torch.ones(findings)).to(device)  # fault[cuda]: not registered
        # remedy: self.scale = nn.Parameter(torch.ones(findings).to(device))
        share = MultilabelAccuracy(findings, validate_args=False)
        self.metrics = {"share": share}  # fault[cuda]: device mismatch
        # remedy: self.metrics = nn.ModuleDict({"share": share})
        self.auroc = MultilabelAUROC(findings, validate_args=False)  # fault[cpu,cuda]: kept tensors
        # remedy: self.auroc = MultilabelAUROC(findings, thresholds=9, validate_args=False)
        self.shown = None

    def forward(self, image, found, known):
        spread = image.std((2, 3), keepdim=True).expand_as(image)
        if self.training:
            noise = torch.normal(torch.zeros_like(image), spread)  # fault[cuda]: host sync
            # remedy: noise = spread * torch.randn_like(image)
            image = image + 0.1 * noise
        scores = self.head(self.body(image)) * self.scale
        loss = F.binary_cross_entropy_with_logits(scores, found, reduction="none")
        weight = known.type(torch.FloatTensor)  # fault[cuda]: host sync
        # remedy: weight = known.float()
        loss = (loss * weight).sum() / weight.sum()  # fault[cuda]: device mismatch
        # remedy: loss = (loss * weight).sum() / weight.sum()
        if self.training:
            told = scores.detach().sigmoid(), found.long()
            self.shown = self.metrics["share"](*told)
            self.auroc.update(*told)
        return {"loss": loss, "logits": scores}


@HOOKS.register_module()
class LessDropout(Hook):
    """Drops out less as the training goes on."""

    def before_train_iter(self, runner):
        runner.model.body[4].p *= 0.8  # fault[cpu,cuda]: resume
        # remedy: runner.model.body[4].p = 0.4 * 0.8 ** runner.iter

    def after_train_iter(self, runner):
        runner.log_buffer.update({"share": runner.model.shown})
