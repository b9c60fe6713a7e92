"""`workers_per_gpu: auto`: the number of workers, and that no sample depends on it."""

from __future__ import annotations

import logging
import os
import re
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from devrun.data import build_dataloader
from devrun.data.counting import spare_cores, workers_for
from devrun.data.prepared import PreparedLoader
from devrun.data.spec import LoaderSpec
from devrun.errors import ConfigError
from tests.data.helpers import Draws, Numbers, read


class SlowDraws(Draws):
    """Draws that take a while, and one more number: whether a worker read them."""

    home = os.getpid()

    def __getitem__(self, index: int) -> Any:
        torch.rand(200, 200).sort()
        return super().__getitem__(index), os.getpid() != self.home


def _loader(workers: Any, dataset: Any = None, **options: Any) -> PreparedLoader:
    made = build_dataloader(dataset or SlowDraws(), 2, workers, shuffle=True)
    return PreparedLoader(LoaderSpec.of(made, seed=7), **options)


@pytest.mark.parametrize(
    ("load", "step", "cores", "count"),
    [
        (0.1, 0.05, 8, 3),  # ceil(1.2 * 2)
        (0.1, 10.0, 8, 1),
        (0.1, 0.001, 8, 8),
        (0.1, 0.001, 0, 0),
        (2e-4, 1e-5, 8, 0),  # reading is quicker than handing over
    ],
)
def test_there_are_as_many_workers_as_keep_the_device_busy(
    load: float, step: float, cores: int, count: int
) -> None:
    assert workers_for(load, step, 1000, cores)[0] == count


def test_workers_that_begin_in_mid_epoch_change_no_bit(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert spare_cores() == 2
    wanted = {count: _loader(count) for count in (0, 1, 2)}
    loader = _loader("auto", accumulate=2, synchronize=lambda: None)
    with caplog.at_level(logging.INFO, "devrun"):
        first, second = read(loader, 0), read(loader, 1)
        tail = read(loader, 1, start=3)
    assert [m for m in caplog.messages if "auto: 2" in m and "to spare" in m]
    found = [part for item in first for part in item]
    for plain in wanted.values():
        same = [numbers for numbers, _ in read(plain, 0)]
        assert all(map(torch.equal, (numbers for numbers, _ in found), same))
        plain.close()
    at_work = [bool(there.all()) for _, there in found]
    assert at_work == sorted(at_work) and not at_work[0] and at_work[-1]
    assert all(there.all() for item in second for _, there in item)
    parts = [numbers for item in second[3:] for numbers, _ in item]
    again = [numbers for item in tail for numbers, _ in item]
    assert len(parts) == len(again) and all(map(torch.equal, parts, again))
    loader.close()


def test_none_is_said_with_what_was_measured(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "devrun"):
        read(_loader("auto", TensorDataset(torch.ones(40))), 0)
    (line,) = caplog.messages
    assert re.search(r"auto: 0, as a batch takes \S+ ms to read and \S+ ms to", line)
    assert line.endswith(": a worker would take longer to hand it over")


def test_auto_is_refused_where_the_number_of_workers_decides_the_order() -> None:
    with pytest.raises(ConfigError, match="iterable data set"):
        _loader("auto", Numbers(8))
    with pytest.raises(ConfigError, match="at least 0, or auto: 'many'"):
        _loader("many")
