"""An evaluation that an IPU cannot run, and data that no device can."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.hooks import EvalHook
from tests.ipu.harness import Net, ipu, loader, make


class Picky(Net):
    """Its evaluation reads a value, which no graph can."""

    def forward(self, x):
        x = super().forward(x)
        if not self.training and x.sum().item() > 1e9:
            return -x
        return x


def evaluated(device, model):
    runner, losses = make(device, model=model, epochs=2)
    runner.register_hook(EvalHook(loader(samples=10), metric="accuracy"), "LOW")
    try:
        runner.run([loader()], [("train", 1)])
    finally:
        runner.close()
    return runner, losses.values


def test_what_cannot_be_compiled_is_said_with_its_cure():
    with pytest.raises(UnsupportedFeatureError) as caught:
        evaluated(ipu(), Picky())
    text = str(caught.value)
    assert text.startswith("the evaluation cannot be compiled: ")
    assert f" at {__file__}:" in text
    assert text.endswith("set ipu.evaluate_on: host")


def test_the_cure_that_is_named_works():
    runner, losses = evaluated(ipu(evaluate_on="host"), Picky())
    assert len(losses) == 32
    assert runner.epoch == 2


def test_a_frozen_norm_stays_frozen(emulation):
    class Frozen(Net):
        def train(self, mode=True):
            super().train(mode)
            self.norm.eval()
            return self

    evaluated(ipu(), Frozen(norm=True))
    assert emulation.counts["compile"] == 2


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.table(x).mean(1))


@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize("where", ["train", "evaluation"])
def test_an_index_out_of_range_is_named_as_on_other_devices(where, place):
    def words(samples, largest):
        x = torch.zeros(samples, 3, dtype=torch.long)
        x[1, 2] = largest
        data = torch.utils.data.TensorDataset(x, torch.zeros(samples, dtype=torch.long))
        return torch.utils.data.DataLoader(data, batch_size=4)

    def run(device):
        runner, _ = make(device, model=Words(), epochs=1)
        runner.register_hook(EvalHook(words(8, 7 if where == "evaluation" else 0)))
        with pytest.raises(ConfigError) as caught:
            runner.run([words(8, 7 if where == "train" else 0)], [("train", 1)])
        runner.close()
        return str(caught.value)

    text = run(ipu(evaluate_on=place))
    assert text == run("cpu")
    assert text.startswith(
        "index 7 of sample 1 of the batch (batch[0]) is out of range"
    )
    assert "its embeddings have 5 rows" in text


def test_a_label_out_of_range_is_named():
    x, y = torch.zeros(8, 2, 4, 4), torch.tensor([0, 9, 0, 0, 0, 0, 0, 0])
    data = torch.utils.data.TensorDataset(x, y)
    runner, _ = make(ipu(), epochs=1)
    with pytest.raises(ConfigError, match="label 9 of sample 1 of the batch"):
        runner.run([torch.utils.data.DataLoader(data, batch_size=4)], [("train", 1)])
    runner.close()
