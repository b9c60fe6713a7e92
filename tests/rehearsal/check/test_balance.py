"""Balanced pipelines: what is measured, and that no division is better."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from devrun.config import Config
from devrun.devices.ipu.probes.balance import Block, balanced, traced
from devrun.errors import ConfigError
from devrun.models import ResNet, StepModule, VisionTransformer
from devrun.models.build import build_loss, build_model

ROOT = Path(__file__).resolve().parents[3]
RECIPE = ROOT / "configs/vision_transformer/vit-base-p16_ft-4xb544_in1k-224_ipu.yaml"
GIGA = 1e9


def images(count, size=224):
    return torch.zeros(count, 3, size, size), torch.zeros(count, dtype=torch.long)


def test_vit_b16_is_measured_as_it_is():
    model = StepModule(VisionTransformer(), nn.CrossEntropyLoss())
    blocks = traced(model, images(2)).blocks()
    assert [b.name for b in blocks] == [
        "patch_embed",
        "pos_drop",
        *(f"blocks.{i}" for i in range(12)),
        "norm",
        "head",
    ]
    # 17.6 G multiply-adds an image (Dosovitskiy et al. 2021), each two operations
    assert sum(b.flops for b in blocks) / 2 == pytest.approx(35.1 * GIGA, rel=0.01)


@pytest.mark.parametrize("seed", range(6))
def test_the_division_is_the_best_of_all(seed):
    draw = torch.Generator().manual_seed(seed)
    costs = torch.randint(0, 20, (9,), generator=draw).tolist()
    blocks = [Block(str(i), cost) for i, cost in enumerate(costs)]
    cuts = combinations(range(1, 9), 1 + seed % 3)
    every = ([sum(costs[i:j]) for i, j in pairwise((0, *cut, 9))] for cut in cuts)
    assert balanced(blocks, 2 + seed % 3).most_flops == min(map(max, every))


def test_measuring_leaves_no_trace_on_the_model():
    model = StepModule(
        ResNet(stage_blocks=(1, 1), num_classes=4), nn.CrossEntropyLoss()
    )
    before = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.get_rng_state()
    traced(model, images(2, 16))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_a_number_read_by_the_model_does_not_matter():
    class Reads(nn.Sequential):
        """Reads numbers as MMCV's loss parsing does."""

        def forward(self, x):
            x = super().forward(x)
            self.seen = x.mean().item()
            return x

    model = Reads(nn.Linear(4, 4), nn.Linear(4, 4))
    assert len(traced(model, torch.zeros(2, 4)).blocks()) == 2
    assert not hasattr(model, "seen")


def test_shapes_that_depend_on_values_are_refused():
    class Picks(nn.Module):
        def forward(self, x):
            return x[x > 0]

    with pytest.raises(ConfigError, match="Sequential cannot be followed without"):
        traced(nn.Sequential(nn.Linear(4, 4), Picks()), torch.zeros(2, 4))


def test_more_ipus_than_blocks_are_refused():
    with pytest.raises(ConfigError, match=r"only 2 blocks to divide \(0, 1\)"):
        balanced([Block("0", 1), Block("1", 1)], 3)


def test_blocks_are_found_in_wrappers():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x):
            return x + self.fc(self.norm(x))

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 16, bias=False)
            self.embed = nn.Embedding(16, 8)
            self.body = nn.Module()
            self.body.layers = nn.ModuleList(Layer() for _ in range(2))
            self.act = nn.ReLU()

        def forward(self, x):
            x = self.embed(x)
            for layer in self.body.layers:
                x = self.act(layer(x))  # called twice: no block of its own
            return self.head(x)

    tokens = torch.zeros(3, 5, dtype=torch.long)
    blocks = traced(Wrapped(), tokens).blocks()
    names = ["embed", "body.layers.0", "body.layers.1", "head"]
    assert [b.name for b in blocks] == names
    assert blocks[1].flops == 2 * 15 * 8 * 8


def test_the_recipes_edges_are_balanced():
    """At its true size, micro-batch and precision."""
    cfg = Config.fromfile(RECIPE)
    step = StepModule(build_model(cfg["model"]), build_loss(cfg["loss"])).half()
    size = cfg["data"]["samples_per_gpu"]
    images = torch.zeros(size, 3, 224, 224, dtype=torch.half)
    labels = torch.zeros(size, dtype=torch.long)
    blocks = traced(step, (images, labels)).blocks()
    split = balanced(blocks, cfg["ipu"]["num_ipus"])
    assert split.edges == cfg["ipu"]["train_split_edges"]
