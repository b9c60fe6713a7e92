"""Iterable data sets: each process reads its share, and a resumed run goes on there."""

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
    """A number in each line of many files; tells its place, and notes what it read."""

    def __init__(self, files, shuffle=False):
        self.files, self.shuffle = sorted(glob.glob(files)), shuffle
        self.epoch, self.place, self.opened = 0, [0, 0], []

    def shard(self, num_shards, index):
        share = copy.deepcopy(self)
        share.part = index, num_shards
        return share

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.resumed = list(state["place"])

    def __iter__(self):
        self.place = vars(self).pop("resumed", [0, 0])
        files = self.files.copy()
        if self.shuffle:
            random.Random(self.epoch).shuffle(files)
        index, count = getattr(self, "part", (0, 1))
        for path in files[index::count][self.place[0] :]:
            self.opened.append(Path(path).name)
            for line in Path(path).read_text().split()[self.place[1] :]:
                self.place[1] += 1
                yield int(line)
            self.place = [self.place[0] + 1, 0]


class Sliced(Numbers):
    """Divided by its own `shard`, and without a place that it could tell."""

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


def items(loader, epoch=0, start=0, place=None):
    loader.set_epoch(epoch)
    loader.start_at(start)
    if place is not None:
        loader.stream.go_on(place)
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


@pytest.mark.parametrize("lookahead", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_stream_goes_on_without_reading_what_was_read(files, accumulate, lookahead):
    def fresh(data):
        loader = prepared(data, rank=1, world_size=2, accumulate=accumulate)
        loader._lookahead = lookahead
        return loader

    def values(item):
        return [t.tolist() for t in item] if accumulate > 1 else item.tolist()

    whole = fresh(Lines(files, shuffle=True))
    whole.set_epoch(1)
    expected, places = [], []
    for item in whole:
        expected.append(values(item))
        places.append(whole.stream.present)
    assert len(expected) > 2 // accumulate
    for done in range(1, len(expected)):
        data = Lines(files, shuffle=True)
        loader = fresh(data)
        loader.set_epoch(1)
        loader.start_at(done)
        loader.stream.go_on(json.loads(json.dumps(places[done - 1])))
        assert [values(item) for item in loader] == expected[done:]


def test_a_place_of_another_batch_is_not_taken(files):
    loader = prepared(Lines(files))
    expected = items(loader)
    place = {"batches": 5, "state": {"place": [4, 0]}}
    assert items(prepared(Lines(files)), start=2, place=place) == expected[2:]


def test_a_stream_with_workers_reads_again(files):
    loader = prepared(Lines(files), num_workers=1)
    assert loader.stream is None
    assert items(loader, start=1) == items(prepared(Lines(files)))[1:]
    loader.close()


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
