"""Every adapter that can run here passes the conformance suite that is shipped.

Those that change torch for their process have one of their own: tests/hpu runs it.
"""

from __future__ import annotations

import ast

import pytest

from devrun.devices.cpu import CPUAdapter
from devrun.devices.cuda.adapter import CUDAAdapter
from devrun.devices.eager import EagerAdapter
from devrun.devices.generic import GenericAdapter
from devrun.devices.hpu.adapter import HPUAdapter
from devrun.step import UpdatePolicy
from devrun.testing import AdapterConformance
from tests.contract.toy_device import ToyAdapter
from tests.docs.blocks import all_blocks


class TestCPU(AdapterConformance):
    device = "cpu"


class TestCPUChannelsLast(AdapterConformance):
    device = {"type": "cpu", "channels_last": True}


class TestToyRegistered(AdapterConformance):
    device = "toy"


class TestMirrorEntryPoint(AdapterConformance):
    device = "mirror"


class TestIPUEmulated(AdapterConformance):
    device = {"type": "ipu", "emulate": True}


@pytest.mark.cuda
class TestCUDA(AdapterConformance):
    device = "cuda"


class Forgetful(ToyAdapter):
    """Leaves the last micro-batch out of an update."""

    def train_step(self, model, batch, optimizer, on_grads=None):
        return super().train_step(model, type(batch)(batch[:-1]), optimizer, on_grads)


class Attached(ToyAdapter):
    """Gives losses that keep their graph, and with it the memory of every step."""

    def train_step(self, model, batch, optimizer, on_grads=None):
        outputs = super().train_step(model, batch, optimizer, on_grads)
        outputs["loss"] = outputs["loss"].clone().requires_grad_()
        return outputs


class Unfinished(ToyAdapter):
    """Trains while it evaluates."""

    def eval_step(self, model, batch, mode="val"):
        outputs = super().eval_step(model, batch, mode)
        for param in model.parameters():
            param.data.add_(1)
        return outputs


class Frozen(ToyAdapter):
    """Keeps no state, so that a random stream cannot be put back."""

    def rng_state(self):
        return {}

    def unwrap_model(self, model):
        return model


class Blind(ToyAdapter):
    """Says that losses are watched, and watches none."""

    def prepare(self, model, optimizer, policy):
        return super().prepare(model, optimizer, UpdatePolicy(nonfinite="ignore"))


@pytest.mark.parametrize(
    ("adapter", "test", "arguments"),
    [
        (Forgetful, "test_accumulation_equals_the_big_batch", [(4, 4, 4)]),
        (Attached, "test_outputs_are_detached_and_complete", []),
        (Unfinished, "test_evaluation_changes_nothing_and_gives_predictions", []),
        (Frozen, "test_the_users_module_comes_back_however_it_is_wrapped", []),
        (Blind, "test_a_nan_is_found_before_a_save_at_the_latest", []),
    ],
)
def test_the_suite_finds_an_adapter_that_is_wrong(adapter, test, arguments):
    good, bad = ToyAdapter(), adapter()
    for each in (good, bad):
        each.setup(0)
    check = getattr(TestToyRegistered(), test)
    check(good, *arguments)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(bad, *arguments)


def test_an_adapter_needs_no_private_name():
    adapters = [ToyAdapter, CPUAdapter, CUDAAdapter, HPUAdapter, GenericAdapter]
    for block in all_blocks("python"):
        if "(EagerAdapter)" in block.text:
            tree = ast.parse(block.text)
            named = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
            assert named and not [name for name in named if name.startswith("_")]
    for adapter in adapters:
        own = {n for n in vars(adapter) if n.startswith("_") and not n.endswith("__")}
        assert own & vars(EagerAdapter).keys() <= {"_abc_impl"}
