"""`FlopsHook`: the FLOPs of one update, as torch counts them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from devrun.errors import UnsupportedFeatureError
from devrun.hooks import FlopsHook
from tests.support.points import loader, make_runner


class Net(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))


def counted(device="cpu", count=True):
    torch.compiler.reset()
    runner = make_runner(model=Net(), seed=3, device=device)
    if count:
        runner.register_hook(FlopsHook())
    runner.run([loader()], [("train", 1)])
    return runner, runner.lines.matching("^FLOPs")


@pytest.mark.parametrize("setting", [False, {"backend": "aot_eager"}])
def test_the_flops_are_those_of_one_update_and_counting_changes_no_bit(setting):
    device = {"type": "cpu", "compile": setting}
    runner, (line,) = counted(device)
    # forward 2 * 3 * (16 + 16); backward the same for the weights, and for the
    # second layer's input
    flops = 2 * (2 * 3 * 32) + 2 * 3 * 16
    assert line == f"FLOPs: {flops / 1e9} GFLOP in an update"
    plain, none = counted(device, count=False)
    assert none == []
    for one, other in zip(
        runner.model.parameters(), plain.model.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_a_device_that_shows_no_operations_refuses_it():
    runner = make_runner(device={"type": "ipu", "emulate": True})
    with pytest.raises(UnsupportedFeatureError, match="FlopsHook"):
        runner.register_hook(FlopsHook())
    runner.close()
