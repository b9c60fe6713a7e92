"""DataLoader: combined batches, leftovers, processes, asynchronous modes."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import poptorch
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

MODES = list(poptorch.DataLoaderMode)


class Numbers(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index >= self.count:
            raise IndexError(index)
        return torch.tensor([float(index)]), index


class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(torch.arange(float(self.count)))


def options(iterations=2, replicas=2, steps=1):
    opts = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(steps)
    return opts


@pytest.mark.parametrize("mode", MODES)
def test_combined_batches(mode):
    loader = poptorch.DataLoader(options(2, 2, 3), Numbers(50), 2, mode=mode)
    assert loader.combinedBatchSize == 24
    assert len(loader) == 2
    for _ in range(2):
        seen = [indices.tolist() for _, indices in loader]
        assert seen == [list(range(24)), list(range(24, 48))]
    loader.terminate()


@pytest.mark.parametrize("mode", MODES)
def test_the_last_batch_can_be_kept(mode, caplog):
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        loader = poptorch.DataLoader(options(), Numbers(10), drop_last=False, mode=mode)
    assert [len(x) for x, _ in loader] == [4, 4, 2]
    assert len(loader) == 3
    if mode == poptorch.DataLoaderMode.Sync:
        assert "not divisible" in caplog.text


@pytest.mark.parametrize("mode", MODES)
def test_iterable_datasets(mode):
    loader = poptorch.DataLoader(options(), Stream(9), mode=mode)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_rebatching_puts_small_worker_batches_together():
    loader = poptorch.DataLoader(
        options(),
        Numbers(10),
        mode=poptorch.DataLoaderMode.AsyncRebatched,
        rebatched_worker_size=3,
    )
    assert [i.tolist() for _, i in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(AssertionError, match="rebatched_worker_size"):
        poptorch.DataLoader(
            options(),
            Numbers(10),
            mode=poptorch.DataLoaderMode.AsyncRebatched,
            rebatched_worker_size=5,
        )


@pytest.mark.parametrize("drop_last", [True, False])
def test_too_few_samples_for_an_element_are_no_empty_data_set(drop_last):
    # the process looks at what its workers load, before that is put together
    loader = poptorch.DataLoader(
        options(2, 4),
        Numbers(3),
        mode=poptorch.DataLoaderMode.AsyncRebatched,
        rebatched_worker_size=4,
        drop_last=drop_last,
    )
    try:
        for _ in range(2):
            assert [len(batch[0]) for batch in loader] == ([] if drop_last else [3])
    finally:
        loader.terminate()


def part(process, shuffle=False, drop_last=True):
    opts = options(1, 2).randomSeed(5)
    opts.Distributed.configureProcessId(process, 3)
    return poptorch.DataLoader(opts, Numbers(20), shuffle=shuffle, drop_last=drop_last)


def indices(loader):
    return [i for _, batch in loader for i in batch.tolist()]


def joined(parts):
    return [index for part in parts for index in part]


def test_processes_take_disjoint_parts():
    parts = [indices(part(p)) for p in range(3)]
    assert parts == [list(range(k, k + 6)) for k in (0, 6, 12)]
    kept = [indices(part(p, drop_last=False)) for p in range(3)]
    assert sorted(joined(kept)) == list(range(20))


def test_shuffling_is_global_and_differs_each_epoch():
    loaders = [part(p, shuffle=True) for p in range(3)]
    first = [indices(loader) for loader in loaders]
    second = [indices(loader) for loader in loaders]
    assert first == [indices(part(p, shuffle=True)) for p in range(3)]
    assert len(set(joined(first))) == 18
    assert first != second
    assert set(joined(first)) | set(joined(second)) == set(range(20))
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(0, 2)
    with pytest.raises(AssertionError, match="randomSeed"):
        poptorch.DataLoader(opts, Numbers(8), shuffle=True)


def test_batch_samplers_are_joined():
    sampler = torch.utils.data.BatchSampler(range(10), 2, drop_last=False)
    loader = poptorch.DataLoader(options(), Numbers(10), batch_sampler=sampler)
    assert [i.tolist() for _, i in loader] == [[0, 1, 2, 3, 4, 5, 6, 7]]
    with pytest.raises(poptorch.Error, match="batch_sampler excludes"):
        poptorch.DataLoader(options(), Numbers(10), 2, batch_sampler=sampler)


def test_what_cannot_work_is_refused():
    with pytest.raises(AssertionError, match=r"poptorch\.Options"):
        poptorch.DataLoader({}, Numbers(8))
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(0, 2)
    with pytest.raises(AssertionError, match="auto_distributed_partitioning"):
        poptorch.DataLoader(opts, Stream(8))
    loader = poptorch.DataLoader(
        options(), Numbers(8), mode=poptorch.DataLoaderMode.Async
    )
    with pytest.raises(poptorch.Error, match="already"):
        poptorch.AsynchronousDataAccessor(loader)


class Pids(Numbers):
    def __getitem__(self, index):
        return super().__getitem__(index)[0], torch.tensor(os.getpid())


class Broken(Numbers):
    def __getitem__(self, index):
        if index == self.count - 1:
            raise OSError(f"no such file: {index}")
        return super().__getitem__(index)[0]


def test_the_error_of_an_element_reaches_the_caller():
    loader = poptorch.DataLoader(options(1, 1), Broken(1))
    with pytest.raises(poptorch.Error, match="worker thread failed to start") as first:
        poptorch.AsynchronousDataAccessor(loader)
    assert "no such file: 0" in str(first.value.__cause__)
    accessor = iter(poptorch.AsynchronousDataAccessor(Broken(5)))
    assert [next(accessor).item() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(AssertionError, match="OSError: no such file: 4") as late:
        next(accessor)
    assert isinstance(late.value.__cause__, OSError)
    with pytest.raises(AssertionError, match="exit code 1"):
        next(accessor)
    with pytest.raises(poptorch.Error, match="flat 1D container"):
        poptorch.AsynchronousDataAccessor([(torch.ones(1), 2)])


@pytest.mark.parametrize("strategy", list(poptorch.SharingStrategy))
def test_a_process_loads(strategy):
    accessor = poptorch.AsynchronousDataAccessor(
        Pids(7), buffer_size=2, sharing_strategy=strategy, load_indefinitely=False
    )
    assert len(accessor) == 7
    process = int(next(iter(accessor))[1])  # broken off; the next pass begins anew
    assert process != os.getpid()
    for _ in range(2):
        seen = [(value.item(), pid.item()) for value, pid in accessor]
        assert seen == [(value, process) for value in range(7)]
    accessor.terminate()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    with pytest.raises(AssertionError, match="terminated"):
        iter(accessor)


class Slowly(Numbers):
    """Notes in shared memory how far it was read."""

    def __init__(self, count):
        super().__init__(count)
        self.read = torch.zeros((), dtype=torch.int64).share_memory_()

    def __getitem__(self, index):
        self.read += 1
        return super().__getitem__(index)[0]


@pytest.mark.parametrize(("early", "count"), [(False, 1), (True, 5)])
def test_the_ring_is_filled_before_it_is_asked_for(early, count):
    data = Slowly(9)
    accessor = poptorch.AsynchronousDataAccessor(
        data,
        buffer_size=4,
        early_preload=early,
        sharing_strategy=poptorch.SharingStrategy.Fork,
    )
    until = time.monotonic() + 30
    while data.read < count and time.monotonic() < until:
        time.sleep(0.01)
    assert data.read == count  # four in the ring, and one in hand
    assert len(list(accessor)) == 9
    accessor.terminate()


LEAVES = """
import os, sys, poptorch, torch
from torch.utils.data import TensorDataset
if __name__ == "__main__":
    loader = poptorch.DataLoader(
        poptorch.Options(), TensorDataset(torch.ones(50)), num_workers=1,
        mode=poptorch.DataLoaderMode.Async,
    )
    next(iter(loader))
    print("loading", flush=True)
    os.kill(os.getpid(), int(sys.argv[1])) if len(sys.argv) > 1 else None
"""


@pytest.mark.parametrize(
    "number", [(), pytest.param(("9",), marks=pytest.mark.slow)], ids=["ends", "killed"]
)
def test_no_process_is_left_behind(tmp_path, number):
    """They all hold the pipe of standard output, which is read to its end."""
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES)
    paths = [str(Path(poptorch.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(script), *number],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == b"loading\n"
    assert done.returncode == (-9 if number else 0), done.stderr.decode()
