"""An evaluation that an IPU cannot run is found before the first update, not after."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.hooks import EvalHook, Hook
from tests.ipu.harness import Net, assert_same_state, ipu, loader, make, net


class Picky(Net):
    """Its evaluation reads a value, which no graph can."""

    def forward(self, x):
        x = super().forward(x)
        if not self.training and x.sum().item() > 1e9:
            return -x
        return x


def evaluated(device, model, *, hook=True, workflow=(("train", 1),), **options):
    evaluation = {k: options.pop(k) for k in ("interval", "start") if k in options}
    watch = options.pop("watch", None)
    runner, losses = make(device, model=model, epochs=2, **options)
    if watch is not None:
        runner.register_hook(watch)
    if hook:
        held = EvalHook(loader(samples=10), metric="accuracy", **evaluation)
        runner.register_hook(held, "LOW")
    loaders = [loader() if mode == "train" else loader(10) for mode, _ in workflow]
    try:
        runner.run(loaders, list(workflow))
    finally:
        runner.close()
    return runner, losses.values


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"hook": False, "workflow": [("train", 1), ("val", 1)]},
    ],
)
def test_what_cannot_be_compiled_ends_the_run_before_its_first_update(case):
    steps = []

    class Count(Hook):
        def after_train_iter(self, runner):
            steps.append(runner.iter)

    options = {"device": ipu(), **case}
    model, device = Picky(), options.pop("device")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UnsupportedFeatureError) as caught:
        evaluated(device, model, watch=Count(), **options)
    assert steps == []
    text = str(caught.value)
    assert text.startswith("the evaluation cannot be compiled: ")
    assert f" at {__file__}:" in text
    assert text.endswith("set ipu.evaluate_on: host")
    assert all(torch.equal(model.state_dict()[k], v) for k, v in before.items())


def test_the_cure_that_is_named_works():
    runner, losses = evaluated(ipu(evaluate_on="host"), Picky())
    assert len(losses) == 32
    assert runner.epoch == 2


def test_an_evaluation_that_never_comes_refuses_nothing():
    assert len(evaluated(ipu(), Picky(), interval=3)[1]) == 32
    assert len(evaluated(ipu(), Picky(), start=3)[1]) == 32


def test_trying_it_changes_no_bit_of_the_training(emulation):
    mine, losses = evaluated(ipu(), net(norm=True, dropout=0.3))
    assert emulation.counts["compile"] == 2
    other, expected = evaluated(ipu(), net(norm=True, dropout=0.3), hook=False)
    assert losses == expected
    assert_same_state(mine.model, other.model)


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
