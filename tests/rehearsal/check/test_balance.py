"""Balanced pipelines: what is measured, and that no division is better."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from devrun.config import Config
from devrun.devices.ipu.probes.balance import balance, measure, partition
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
    vit = balance(model, images(2), 4)
    assert [b.name for b in vit.blocks] == [
        "patch_embed",
        "pos_drop",
        *(f"blocks.{i}" for i in range(12)),
        "norm",
        "head",
    ]
    # 17.6 G multiply-adds an image (Dosovitskiy et al. 2021), each two operations
    assert sum(b.flops for b in vit.blocks) / 2 == pytest.approx(35.1 * GIGA, rel=0.01)
    assert sum(b.parameter_bytes for b in vit.blocks) == 4 * 86_567_656
    tokens = 2 * 197 * 768 * 4
    assert all(b.input_bytes == tokens for b in vit.blocks[1:14])
    # at least the inputs of four products and two norms, and the attention weights
    assert vit.blocks[2].activation_bytes > 10 * tokens + 2 * 12 * 197 * 197 * 4


def _cuts(count, stages):
    return combinations(range(1, count), stages - 1)


@pytest.mark.parametrize("seed", range(20))
def test_the_division_is_the_best_of_all(seed):
    draw = torch.Generator().manual_seed(seed)
    count, stages = 9, 2 + seed % 3
    costs = torch.randint(0, 20, (count,), generator=draw).tolist()
    sizes = torch.randint(1, 20, (count,), generator=draw).tolist()
    limit = int(max(*sizes, sum(sizes) / stages * (1 + seed % 5 / 10)))

    def cost(_, i, j):
        return sum(costs[i:j])

    def memory(stage, i, j):
        return sum(sizes[i:j]) + stages - stage

    def worst(value, starts):
        ends = enumerate(pairwise((*starts, count)))
        return max(value(stage, i, j) for stage, (i, j) in ends)

    every = [(0, *cut) for cut in _cuts(count, stages)]
    fitting = [s for s in every if worst(memory, s) <= limit]
    starts = partition(count, stages, cost, memory, limit)
    if not fitting:
        assert starts is None
        return
    best = min((worst(cost, s), worst(memory, s)) for s in fitting)
    assert (worst(cost, starts), worst(memory, starts)) == best


def test_memory_moves_the_division_that_work_alone_would_make():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Flatten(),
        nn.Linear(8 * 32 * 32, 16),
        nn.Linear(16, 8 * 32 * 32),
    )
    batch = torch.zeros(1, 1, 32, 32)
    free = balance(model, batch, 2)
    assert [e["layer_to_call"] for e in free.edges] == ["0", "2"]
    weights = 3 * sum(b.parameter_bytes for b in free.blocks[4:])
    tight = balance(model, batch, 2, memory_bytes=int(0.8 * weights))
    assert [e["layer_to_call"] for e in tight.edges] == ["0", "5"]
    assert tight.fits
    none = balance(model, batch, 2, memory_bytes=1000)
    assert not none.fits
    assert none.edges == free.edges


def test_measuring_leaves_no_trace_on_the_model():
    model = StepModule(
        ResNet(stage_blocks=(1, 1), num_classes=4), nn.CrossEntropyLoss()
    )
    before = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.get_rng_state()
    balance(model, images(2, 16), 2)
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
    assert len(balance(model, torch.zeros(2, 4), 2).edges) == 2
    assert not hasattr(model, "seen")


def test_shapes_that_depend_on_values_are_refused():
    class Picks(nn.Module):
        def forward(self, x):
            return x[x > 0]

    with pytest.raises(ConfigError, match="Sequential cannot be followed without"):
        balance(nn.Sequential(nn.Linear(4, 4), Picks()), torch.zeros(2, 4), 2)


def test_more_ipus_than_blocks_are_refused():
    with pytest.raises(ConfigError, match=r"only 2 blocks to divide \(0, 1\)"):
        balance(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.zeros(2, 4), 3)


def test_blocks_are_found_in_wrappers_and_divided_where_few():
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
            self.head.weight = self.embed.weight  # tied: counts where called first
            self.body = nn.Module()
            self.body.layers = nn.ModuleList(Layer() for _ in range(2))
            self.act = nn.ReLU()

        def forward(self, x):
            x = self.embed(x)
            for layer in self.body.layers:
                x = self.act(layer(x))  # called twice: no block of its own
            return self.head(x)

    tokens = torch.zeros(3, 5, dtype=torch.long)
    blocks = measure(Wrapped(), tokens)
    names = ["embed", "body.layers.0", "body.layers.1", "head"]
    assert [b.name for b in blocks] == names
    assert [b.parameter_bytes for b in blocks] == [512, 352, 352, 0]
    assert blocks[1].flops == 2 * 15 * 8 * 8
    finer = measure(Wrapped(), tokens, at_least=5)
    assert [b.name for b in finer] == [
        "embed",
        "body.layers.0.norm",
        "body.layers.0.fc",
        *names[2:],
    ]


def test_frozen_parameters_have_no_gradient_and_no_state():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    blocks = measure(model, torch.zeros(2, 4))
    assert [b.trained_bytes for b in blocks] == [0, 80]
    assert [b.parameter_bytes for b in blocks] == [80, 80]


def test_the_recipes_edges_are_balanced():
    """At its true size, micro-batch and precision."""
    cfg = Config.fromfile(RECIPE)
    step = StepModule(build_model(cfg["model"]), build_loss(cfg["loss"])).half()
    size = cfg["data"]["samples_per_gpu"]
    images = torch.zeros(size, 3, 224, 224, dtype=torch.half)
    labels = torch.zeros(size, dtype=torch.long)
    split = balance(step, (images, labels), cfg["ipu"]["num_ipus"])
    assert split.edges == cfg["ipu"]["train_split_edges"]
    assert split.fits
