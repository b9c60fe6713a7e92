"""Loaders of combined batches, and evaluation that counts each sample once."""

import random

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

from devrun.devices.resolve import resolve_device
from devrun.models.step_module import StepModule
from devrun.step import UpdatePolicy
from tests.ipu.harness import ipu, make, net

SIZE = 4


def prepared(data, *, training=True, seed=2, **options):
    """The loader an emulated IPU makes of `data`, with 2 x 3 micro-batches."""
    options.setdefault("replicas", 2)
    adapter = resolve_device(ipu(**options))
    adapter.setup(seed)
    model = nn.Linear(1, 1)
    adapter.prepare(
        StepModule(model, nn.MSELoss()),
        torch.optim.SGD(model.parameters(), lr=0.1),
        UpdatePolicy(accumulate=3),
    )
    return adapter, adapter.prepare_dataloader(data, training=training)


class Numbers(list):
    """A map-style data set."""


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(50))


class Alternating:
    """A batch sampler of somebody's own, without a length in samples."""

    def __iter__(self):
        for start in range(0, 50, SIZE):
            yield list(range(start, min(start + SIZE, 50)))

    def __len__(self):
        return 13


def numbers(**options):
    return DataLoader(Numbers(range(50)), **options)


LOADERS = {
    "shuffled": lambda: numbers(batch_size=SIZE, shuffle=True),
    "in order": lambda: numbers(batch_size=SIZE),
    "weighted": lambda: numbers(
        batch_size=SIZE, sampler=WeightedRandomSampler([1.0] * 50, 50)
    ),
    "two samplers": lambda: numbers(
        batch_sampler=BatchSampler(RandomSampler(range(50)), SIZE, drop_last=False)
    ),
    "own batches": lambda: numbers(batch_sampler=Alternating()),
    "iterable": lambda: DataLoader(Stream(), batch_size=SIZE),
    "workers": lambda: numbers(batch_size=SIZE, shuffle=True, num_workers=2),
    "list of batches": lambda: [torch.arange(n, n + SIZE) for n in range(0, 48, SIZE)],
}


@pytest.mark.parametrize("build", LOADERS.values(), ids=LOADERS)
def test_an_item_is_one_update_and_the_short_last_one_is_left_out(build):
    adapter, loader = prepared(build())
    items = list(loader)
    loader.close()
    adapter.teardown()
    assert [len(item) for item in items] == [24, 24]
    seen = torch.cat(items).tolist()
    if build is not LOADERS["weighted"]:
        assert len(set(seen)) == 48
    if build is not LOADERS["iterable"]:
        assert len(loader) == 2


@pytest.mark.parametrize("name", ["shuffled", "weighted", "own batches", "iterable"])
def test_it_starts_at_any_update_of_its_epoch(name):
    _, loader = prepared(LOADERS[name]())
    loader.set_epoch(3)
    whole = [item.tolist() for item in loader]
    loader.set_epoch(3)
    loader.start_at(1)
    assert [item.tolist() for item in loader] == whole[1:]


class Noisy(Numbers):
    def __getitem__(self, index):
        return torch.tensor([float(index), random.random()])


def test_the_randomness_of_a_sample_is_that_of_the_cpu():
    data = DataLoader(Noisy(range(50)), batch_size=SIZE, shuffle=True)
    _, mine = prepared(data)
    cpu = resolve_device("cpu")
    cpu.setup(2)
    drawn = cpu.prepare_dataloader(data, training=True)
    noise = dict(row.tolist() for item in drawn for row in item)
    assert all(noise[n] == value for i in mine for n, value in i.tolist())


class Scores(nn.Module):
    """Predicts, reports a log value of its own, and knows nothing of padding."""

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, batch):
        return self.net(batch[0])

    def train_step(self, batch, optimizer):
        output = self.net(batch[0])
        loss = nn.functional.cross_entropy(output, batch[1])
        hits = (output.argmax(1) == batch[1]).float().mean()
        return {"loss": loss, "log_vars": {"hits": hits}, "num_samples": len(output)}

    def val_step(self, batch, optimizer):
        found = self.train_step(batch, optimizer)
        return {**found, "predictions": self.net(batch[0]), "names": batch[2]}


class Images:
    def __len__(self):
        return 23

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(2, 4, 4, generator=generator)
        return image, index % 4, torch.tensor(index)


def evaluated(device, batch_size):
    runner, _ = make(device, model=Scores(), loss=False)
    runner.prepare()
    loader = runner.prepare_eval_loader(DataLoader(Images(), batch_size=batch_size))
    outputs = []
    with runner.evaluating():
        outputs = [runner.eval_step(batch) for batch in loader]
    runner.close()
    count = sum(out["num_samples"] for out in outputs)
    means = {
        name: sum(float(o["log_vars"][name]) * o["num_samples"] for o in outputs)
        / count
        for name in ("loss", "hits")
    }
    rows = torch.cat([out["predictions"] for out in outputs])
    names = torch.cat([out["names"] for out in outputs]).tolist()
    return count, means, rows, names


@pytest.mark.parametrize("batch_size", [23, 10, 7, 6, 32])
@pytest.mark.parametrize(
    "options",
    [{}, {"eval_cfg": {"replicationFactor": 2, "deviceIterations": 2}}],
    ids=["one at a time", "four at a time"],
)
def test_every_sample_is_counted_once(batch_size, options):
    count, means, rows, names = evaluated(ipu(**options), batch_size)
    _, expected, all_rows, _ = evaluated("cpu", 1)
    assert count == 23
    assert names == list(range(23))
    torch.testing.assert_close(rows, all_rows, rtol=1e-4, atol=1e-5)
    assert means == pytest.approx(expected, rel=1e-4)


def test_evaluation_on_the_host_compiles_nothing(emulation):
    count, means, _, _ = evaluated(ipu(evaluate_on="host"), 10)
    _, expected, _, _ = evaluated("cpu", 1)
    assert count == 23
    assert means == pytest.approx(expected, rel=1e-4)
    assert emulation.counts["compile"] == 0
