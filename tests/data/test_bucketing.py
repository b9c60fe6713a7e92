"""Loaders of variable-length samples: padded to few shapes, otherwise as they were."""

import copy
import inspect
from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import ConcatDataset as TorchConcat
from torch.utils.data import DataLoader, Dataset, Subset

from devrun.data import (
    ConcatDataset,
    PreparedLoader,
    RepeatDataset,
    bucketed,
    build_dataloader,
    build_loaders,
)
from devrun.data.spec import LoaderSpec
from devrun.errors import ConfigError, DataError
from tests.data.helpers import Numbers, read
from tests.docs.blocks import codes, table
from tests.support.strict import zip_strict

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
PAD = {"ids": 0, "labels": -100}
Pair = namedtuple("Pair", "ids label")


class Sentences(Dataset[Any]):
    """Sample i is dict(ids, labels) of 2 to 30 tokens from 1 up, and its number."""

    def __init__(self, size=61, know_lengths=False):
        self.all = [2 + (7 * i + i * i) % 29 for i in range(size)]
        if know_lengths:
            self.lengths = self.all

    def __len__(self):
        return len(self.all)

    def __getitem__(self, index):
        ids = 1 + (torch.arange(self.all[index]) * (index + 3)) % 19
        return {"ids": ids, "labels": ids, "index": index}


class As(Sentences):
    """The same samples in another form."""

    def __init__(self, form):
        super().__init__(24)
        self.form = form

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return self.form(sample["ids"], index)


def loader_of(dataset=None, batch_size=4, **options):
    dataset = Sentences() if dataset is None else dataset
    return DataLoader(dataset, batch_size=batch_size, **options)


def resumable(loader, **options):
    return PreparedLoader(LoaderSpec.of(loader, seed=7, **options))


def lengths_in(batches, key="ids"):
    return {batch[key].shape[1] for batch in batches}


def test_batches_have_few_shapes_and_the_same_samples():
    batches = list(bucketed(loader_of(), pad=PAD, num=3))
    assert len(lengths_in(batches)) == 3
    assert torch.cat([batch["index"] for batch in batches]).tolist() == [*range(61)]
    data = Sentences()
    for batch in batches:
        for row, index in enumerate(batch["index"].tolist()):
            ids, length = data[index]["ids"], data.all[index]
            assert torch.equal(batch["ids"][row, :length], ids)
            assert torch.equal(batch["labels"][row, :length], ids)
            assert not batch["ids"][row, length:].any()
            assert (batch["labels"][row, length:] == -100).all()


@pytest.mark.parametrize(
    ("form", "keys", "part"),
    [
        (lambda ids, i: (ids, i), {0: 0}, lambda b: b[0]),
        (lambda ids, i: [i, ids.float()], {1: 0.0}, lambda b: b[1]),
        (Pair, {0: 0}, lambda b: b.ids),
        (lambda ids, i: {5: ids.numpy()}, {5: 0}, lambda b: b[5]),
        (lambda ids, i: {"ids": ids.tolist()}, {"ids": 0}, lambda b: b["ids"]),
        (lambda ids, i: ids, 0, lambda b: b),
        (lambda ids, i: ids.numpy().astype(np.float32), 0, lambda b: b),
    ],
    ids="tuple list namedtuple array numbers tensor bare-array".split(),
)
def test_samples_of_any_form(form, keys, part):
    loader = bucketed(loader_of(As(form)), pad=keys, sizes=[20, 30])
    batches = [part(batch) for batch in loader]
    assert {tuple(b.shape) for b in batches} == {(4, 20), (4, 30)}
    lengths = [int((row > 0).sum()) for batch in batches for row in batch]
    assert lengths == As(form).all


def test_the_dimension_may_be_the_last():
    data = As(lambda ids, i: {"x": ids.float().expand(3, -1), "y": ids})
    loader = bucketed(loader_of(data), pad={"x": 1.5, "y": 0}, dim=-1, sizes=[40])
    batch = next(iter(loader))
    assert batch["x"].shape == (4, 3, 40) and batch["y"].shape == (4, 40)
    assert (batch["x"][0, :, data.all[0] :] == 1.5).all()


def test_what_pads_by_itself_is_padded_further():
    def collate(samples):  # as Hugging Face's collators
        ids = pad_sequence([sample["ids"] for sample in samples], batch_first=True)
        return UserDict(ids=ids, mask=(ids > 0).long())

    loader = loader_of(collate_fn=collate)
    padded = bucketed(loader, pad={"ids": 0, "mask": 0}, sizes=[16, 32])
    for before, after in zip_strict(loader, padded):
        assert isinstance(after, UserDict)
        length = before["ids"].shape[1]
        assert (
            after["ids"].shape
            == after["mask"].shape
            == (len(after["ids"]), 16 * (1 + (length > 16)))
        )
        assert torch.equal(after["ids"][:, :length], before["ids"])
        assert after["mask"].sum() == before["mask"].sum()


def test_without_buckets_the_longest_sample_of_a_batch_decides():
    longest = bucketed(loader_of(), pad=PAD, sizes="longest", multiple_of=8)
    assert lengths_in(longest) <= {8, 16, 24, 32}


def test_what_is_too_long_is_refused_in_one_line():
    told = r"sample of length \d\d is above .* 16: cut it"
    with pytest.raises(DataError, match=told):
        bucketed(loader_of(), pad=PAD, sizes=[8, 16])
    collate = lambda numbers: torch.ones(len(numbers), 20)  # noqa: E731
    unseen = bucketed(loader_of(Numbers(7), collate_fn=collate), pad=0, sizes=[8, 16])
    with pytest.raises(DataError, match=told):
        list(unseen)


def test_known_lengths_spare_the_reading():
    class Unread(Sentences):
        def __getitem__(self, index):
            raise AssertionError("read")

    known = Unread(40, know_lengths=True)
    read_ones = bucketed(loader_of(Sentences(40)), pad=PAD).collate_fn.buckets  # type: ignore[attr-defined]
    for dataset in (known, Subset(known, range(40)), ConcatDataset([known])):
        assert bucketed(loader_of(dataset), pad=PAD).collate_fn.buckets == read_ones  # type: ignore[attr-defined]
    assert len(RepeatDataset(known, 3).lengths) == 120
    assert len(ConcatDataset([known, known]).lengths) == 80
    with pytest.raises(DataError, match="AssertionError: read"):  # torch's has none
        bucketed(loader_of(TorchConcat([known])), pad=PAD)


def test_an_iterable_data_set_needs_a_list():
    with pytest.raises(ConfigError, match="give sizes as a list"):
        bucketed(DataLoader(Numbers(4)), pad=0)
    collate = lambda numbers: torch.ones(len(numbers), len(numbers))  # noqa: E731
    loader = DataLoader(Numbers(7), 4, collate_fn=collate)
    shapes = [tuple(b.shape) for b in bucketed(loader, pad=0, sizes=[3, 6])]
    assert shapes == [(4, 6), (3, 3)]


@pytest.mark.parametrize("workers", [0, 2])
def test_any_start_in_any_epoch_is_exact(workers):
    def fresh(number):
        buckets = {"pad": PAD, "num": 3}
        return resumable(build_dataloader(Sentences(), 4, number, buckets=buckets))

    whole = [read(fresh(0), epoch) for epoch in range(2)]
    assert not torch.equal(whole[0][0]["index"], whole[1][0]["index"])
    loader = fresh(workers)
    for epoch, cut in ((0, 5), (1, 1), (1, 15), (0, 16)):
        rest = read(loader, epoch, cut)
        assert len(rest) == 16 - cut
        for mine, theirs in zip_strict(rest, whole[epoch][cut:]):
            assert all(torch.equal(mine[key], theirs[key]) for key in theirs)
    loader.close()


def chosen(lengths, **options):
    """The sizes chosen for batches of one sample each."""
    samples = [torch.ones(length) for length in lengths]
    loader = bucketed(DataLoader(samples), pad=0, **options)
    return list(loader.collate_fn.buckets.sizes)  # type: ignore[attr-defined]


def test_sizes_are_quantiles_and_multiples():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 60, (300,), generator=generator).tolist()
    sizes = chosen(lengths, num=4)
    counts = torch.bincount(torch.bucketize(torch.tensor(lengths), torch.tensor(sizes)))
    assert len(counts) == 4 and (counts - 75).abs().max() < 12
    assert chosen([3, 3, 9, 12], num=8) == [3, 9, 12]  # no more than lengths
    rounded = chosen(lengths, num=5, multiple_of=8)
    assert all(size % 8 == 0 for size in rounded) and rounded[-1] <= 64


SET = {"type": "TextParagraphs", "block_size": 64, "max_bytes": 6_000}
SPEC = {"pad": {"input_ids": 0, "labels": -100}}


def test_a_config_pads_every_loader():
    data = {"batch_size": 4, "train": SET, "val": SET}
    before = copy.deepcopy(data | {"buckets": SPEC})
    given = copy.deepcopy(before)
    train, val = build_loaders(given).values()
    assert given == before
    assert len(lengths_in(train, "input_ids")) <= 8
    assert len(lengths_in(val, "input_ids")) <= 8


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"pads": {}}, "unexpected argument 'pads'; did you mean 'pad'"),
        ({}, "needs 'pad'"),
        ({"pad": {"input_id": 0}}, "no 'input_id' in a dict.*did you mean 'input_ids'"),
        ({"pad": {"labels": "x"}}, "pad takes numbers by key"),
        ({"pad": 0}, r"of a dict cannot be padded: pad takes the keys"),
        ({**SPEC, "dim": 1}, "'input_ids' has the shape .* no dimension 1"),
        ({**SPEC, "sizes": "quantile"}, "sizes is a list of .*: 'quantile'"),
        ({**SPEC, "sizes": [0, 8]}, r"sizes is a list of lengths or .*: \[0, 8\]"),
        ({**SPEC, "sizes": []}, "sizes is a list"),
        ({**SPEC, "num": 0}, "num must be an int of at least 1"),
    ],
)
def test_a_mistake_is_one_line(spec, told):
    with pytest.raises(ConfigError, match=told) as failure:
        next(iter(build_loaders({"buckets": spec, "train": SET}, ["train"])["train"]))
    assert "\n" not in str(failure.value)


def test_the_document_has_every_argument():
    rows = table("docs/bucketing.md", "argument", "meaning")
    arguments = list(inspect.signature(bucketed).parameters)
    assert ["loader", *(codes(row[0])[0] for row in rows)] == arguments
