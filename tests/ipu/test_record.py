"""`modules_to_record`: outputs of layers beside those of the host."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from devrun.config import Config
from devrun.errors import ConfigError
from devrun.runners.training import build_training
from tests.ipu.harness import Net, assert_same_state, ipu, net, train
from tests.support.observe import Losses

TEXT = "modules_to_record: "


def told(capsys):
    lines = capsys.readouterr().err.splitlines()
    return [line.partition(TEXT)[2] for line in lines if TEXT in line]


class Twice(Net):
    """Its convolution is off on the device; the head is called twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import poptorch

        x = self.conv(x)
        if poptorch.isRunningOnIpu():
            x = x + 0.5
        x = self.norm(x).flatten(1)
        return self.head(x) + self.head(-x)


def test_what_differs_is_told_after_every_update_and_changes_nothing(capsys):
    plain, expected = train(ipu(), model=net(norm=True), epochs=1)
    capsys.readouterr()
    device = ipu(modules_to_record=["conv", "norm", 4])
    runner, losses = train(device, model=net(norm=True), epochs=1)
    assert told(capsys) == ["conv, norm, head as on the host"] * 16
    assert losses == expected
    assert_same_state(runner.model, plain.model)


def test_the_layer_is_named_with_how_far_off_it_is(capsys):
    train(ipu(modules_to_record=["conv", "norm", "head"]), model=Twice(), epochs=1)
    lines = told(capsys)
    assert not [line for line in lines if line.startswith("conv ")]
    assert lines[0] == "norm differs from the host in 256 of 256 values, by 0.5 at most"
    assert lines[1].startswith("head differs")
    assert lines[2].startswith("head#2 differs")


class Unused(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.flatten(1), self.head.weight[:, :32])


REFUSED = {
    "no layer": (["conw"], {}, "'conw' is no layer of the model; did you mean 'conv'"),
    "no index": ([50], {}, "50, but the model has the layers 0 to 4"),
    "replicas": (["conv"], {"replicas": 2}, "one micro-batch in fp32, not 2"),
    "no list": ("conv", {}, "must be a list"),
}


@pytest.mark.parametrize(("given", "options", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_compared_is_refused(given, options, says, emulation):
    with pytest.raises(ConfigError, match=says):
        train(ipu(modules_to_record=given, **options))
    assert emulation.counts["compile"] == 0


def test_a_layer_that_is_not_called_is_refused():
    with pytest.raises(ConfigError, match="names 'conv', which the forward pass never"):
        train(ipu(modules_to_record=["conv"]), model=Unused())


def test_it_may_stand_where_mmcv_has_it(tmp_path, capsys):
    path = tmp_path / "run.py"
    path.write_text(
        "model = dict(type='MLP', in_features=4, hidden=[4], num_classes=2)\n"
        "loss = dict(type='CrossEntropyLoss')\n"
        "data = dict(samples_per_gpu=4, workers_per_gpu=0, train=dict(\n"
        "    type='SyntheticImages', shape=[4], num_classes=2, num_samples=8))\n"
        "optimizer = dict(type='SGD', lr=0.1)\n"
        "device = dict(type='ipu', emulate=True)\n"
        "runner = dict(type='EpochBasedRunner', max_epochs=1, modules_to_record=[1])\n"
        f"work_dir = {str(tmp_path)!r}\n"
    )
    training = build_training(Config.fromfile(path), progress=False)
    losses = Losses()
    training.runner.register_hook(losses)
    training.run()
    training.runner.close()
    assert len(losses.values) == 2
    assert [line.endswith("as on the host") for line in told(capsys)] == [True] * 2
