"""Iterable data sets: each process reads its share, and a resumed run goes on in it."""

from __future__ import annotations

import copy
import glob
import json
import random
from pathlib import Path

import pytest
from torch.utils.data import IterableDataset

from devrun.errors import ConfigError
from tests.data.helpers import Numbers, prepared
from tests.support import zygote


class Lines(IterableDataset):
    """A number in each line of many files."""

    def __init__(self, files, shuffle=False):
        self.files, self.shuffle = sorted(glob.glob(files)), shuffle
        self.epoch = 0

    def shard(self, num_shards, index):
        share = copy.deepcopy(self)
        share.part = index, num_shards
        return share

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        files = self.files.copy()
        if self.shuffle:
            random.Random(self.epoch).shuffle(files)
        index, count = getattr(self, "part", (0, 1))
        for path in files[index::count]:
            yield from map(int, Path(path).read_text().split())


class Sliced(Numbers):
    """Divided by its own `shard`."""

    def __init__(self, count, step=1, start=0):
        super().__init__(count)
        self.step, self.start = step, start

    def shard(self, num_shards, index):
        return Sliced(
            self.count, self.step * num_shards, self.start + index * self.step
        )

    def __iter__(self):
        return iter(range(self.start, self.count, self.step))


@pytest.fixture
def files(tmp_path):
    """Seven files of five numbers each, 0 to 34."""
    for number in range(7):
        values = range(number * 5, number * 5 + 5)
        text = "".join(f"{value}\n" for value in values)
        (tmp_path / f"part-{number}.txt").write_text(text)
    return str(tmp_path / "part-*.txt")


def items(loader, epoch=0):
    loader.set_epoch(epoch)
    return [item.tolist() for item in loader]


def flat(batches):
    return [value for batch in batches for value in batch]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 3])
def test_each_reader_has_its_own_files(files, world, workers):
    found = []
    for rank in range(world):
        loader = prepared(
            Lines(files), rank=rank, world_size=world, num_workers=workers
        )
        found.append(flat(items(loader)))
        loader.close()
    assert sorted(flat(found)) == list(range(35))
    assert all(found)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_shard_method_divides_among_processes_and_workers(workers):
    found = [
        flat(items(prepared(Sliced(11), rank=r, world_size=3, num_workers=workers)))
        for r in range(3)
    ]
    assert sorted(flat(found)) == list(range(11))


def test_one_that_does_not_say_how_it_is_divided_is_refused():
    with pytest.raises(ConfigError, match="Numbers does not say how 2 processes") as e:
        prepared(Numbers(10), rank=1, world_size=2)
    assert "\n" not in str(e.value)
    assert flat(items(prepared(Numbers(10)))) == list(range(10))


def test_one_that_divides_itself_is_left_alone():
    data = Numbers(10)
    data.sharded = True
    assert flat(items(prepared(data, rank=1, world_size=2))) == list(range(10))


def test_the_order_of_files_follows_from_the_epoch(files):
    loader = prepared(Lines(files, shuffle=True), rank=0, world_size=2)
    first, second = items(loader, 0), items(loader, 1)
    assert first != second
    assert items(loader, 0) == first


SCRIPT = Path(__file__).with_name("streaming_worker.py")


def test_a_run_goes_on_and_evaluates_each_sample_once(tmp_path, files):
    for start in ("", "resumed"):
        running = zygote.start_ranks([SCRIPT, tmp_path, files, start], tmp_path)
        said = [process.communicate(timeout=200)[1] for process in running]
        assert [p.returncode for p in running] == [0, 0], "\n".join(said)
    for rank in (1, 0):
        whole = json.loads((tmp_path / f"whole-{rank}.json").read_text())
        rest = json.loads((tmp_path / f"resumed-{rank}.json").read_text())
        assert whole["seen"][-len(rest["seen"]) :] == rest["seen"]
        assert whole["weights"] == rest["weights"]
        for name, count in (("files", 35), ("numbers", 11), ("map", 11)):
            assert whole["counted"][name] == [count, sum(range(count))]
