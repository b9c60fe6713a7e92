"""Stages of a pipeline ascend in the order in which the model calls its layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from devrun.errors import ConfigError
from tests.ipu.harness import ipu, train


class Chain(nn.Module):
    """Calls `order` of its layers, which are defined the other way round."""

    def __init__(self, order: str = "abc") -> None:
        super().__init__()
        self.c = nn.Linear(32, 32)
        self.b = nn.Linear(32, 32)
        self.a = nn.Linear(32, 32)
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for name in self.order:
            x = torch.tanh(getattr(self, name)(x))
        return x


class OpenMMLab(Chain):
    """A `train_step` that returns MMCV's dict, and no forward."""

    def train_step(self, batch, optimizer):
        loss = functional.cross_entropy(Chain.forward(self, batch[0]), batch[1])
        return {"loss": loss, "log_vars": {}, "num_samples": len(batch[1])}


class HuggingFace(Chain):
    """A forward that takes labels and returns a `loss`."""

    def forward(self, x, labels):
        return {"loss": functional.cross_entropy(super().forward(x), labels)}


def edges(text: str) -> list[dict[str, object]]:
    """`a0 b1x`: layer, IPU, and a block id if there is one."""
    return [
        {"layer_to_call": name, "ipu_id": int(place), "user_id": block or None}
        for name, place, block in ((e[0], e[1], e[2:]) for e in text.split())
    ]


def trained(model, given, strategy=None, **options):
    if strategy is not None:
        options["executionStrategy"] = strategy
    train(
        ipu(train_split_edges=edges(given), **options),
        model=model,
        loss=None if type(model) is Chain else False,
        optimizer_config={"cumulative_iters": 8},
        epochs=1,
    )


STAGES = {"type": "PipelinedExecution", "stages": [["x"], ["y", "z"]]}
FORWARD = {
    "in any order of the list": ("abc", "c1 a0", None),
    "on one IPU again": ("abbc", "a0 b1", None),
    "back by AutoIncrement": ("abc", "a0 b1 c0", "AutoIncrement"),
    "back without a pipeline": ("abc", "a0 b1 c0", "ShardedExecution"),
    "back and forth without one": ("abab", "a0 b1", "ShardedExecution"),
    "declared stages": ("abc", "a0x b1y c1z", STAGES),
}


@pytest.mark.parametrize(("order", "given", "strategy"), FORWARD.values(), ids=FORWARD)
def test_what_runs_forward_is_accepted(order, given, strategy, emulation):
    trained(Chain(order), given, strategy)
    assert emulation.counts["compile"] == 1


BACK = "'c' on IPU 0 after 'b' on IPU 1"
BACKWARDS = {
    "back to an IPU": ("abc", "a0 b1 c0", None, BACK, "'c' ipu_id 1 or more"),
    "before the first": ("abc", "b0 a1", None, "'b' on IPU 0 after 'a' on IPU 1", "1"),
    "called again": ("aba", "a0 b1", None, "'a' on IPU 0 again after 'b'", "remove"),
    "a block again": ("aba", "a0 b1", "AutoIncrement", "again after", "remove 'b'"),
    "declared stages": ("acb", "a0x b1x c1y", STAGES, "'b' on IPU 1 after 'c'", "in"),
    "never called": ("ab", "a0 b1 c1", None, "names 'c'", "never calls"),
}


@pytest.mark.parametrize(
    ("order", "given", "strategy", "says", "remedy"), BACKWARDS.values(), ids=BACKWARDS
)
def test_what_runs_backwards_is_refused_before_it_is_compiled(
    order, given, strategy, says, remedy, emulation
):
    model = Chain(order)
    with pytest.raises(ConfigError, match="train_split_edges") as caught:
        trained(model, given, strategy)
    text = str(caught.value)
    assert says in text
    assert remedy in text.partition(says)[2]
    assert "\n" not in text
    assert emulation.counts["compile"] == 0
    assert_as_it_was(model, Chain)


def assert_as_it_was(model, kind):
    """Nothing of PopTorch's or of the split is left on the user's model."""
    assert type(model) is kind
    assert {type(weight) for weight in model.parameters()} == {nn.Parameter}
    assert not any(each._forward_pre_hooks for each in model.modules())
    assert not [name for name in vars(model) if name.startswith("_ipu")]


@pytest.mark.parametrize("kind", [OpenMMLab, HuggingFace])
def test_every_form_of_model_is_followed(kind, emulation):
    model = kind("acb")
    with pytest.raises(ConfigError, match="'b' on IPU 1 after 'c' on IPU 2"):
        trained(model, "a0 b1 c2", autoRoundNumIPUs=True)
    assert_as_it_was(model, kind)
    trained(kind("abc"), "a0 b1 c2", autoRoundNumIPUs=True)


def test_blocks_without_a_stage_and_stages_without_a_block():
    with pytest.raises(ConfigError, match=r"\[1\].user_id is 'w', which no stage of"):
        trained(Chain(), "a0x b1w", STAGES)
    with pytest.raises(ConfigError, match="stages, but nothing begins their blocks"):
        trained(Chain(), "", STAGES)
