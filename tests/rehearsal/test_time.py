"""Where the time of a training went, down to the slowest transform."""

from __future__ import annotations

import json
import sys
import time

import pytest
import yaml

from devrun.cli.main import main
from devrun.data.timing import transforms_of, watched
from devrun.rehearsal.recorded import read_run
from devrun.rehearsal.shares import REST, bound_of
from tests.cli.conftest import CONFIG

SOURCE = """
import time
import torch
from devrun.registry import DATASETS


class Sleepy:
    def __call__(self, x):
        time.sleep(0.01)
        return x


def quick(x):
    return x + 0


class Steps:
    def __init__(self, *steps):
        self.transforms = list(steps)

    def __call__(self, x):
        for step in self.transforms:
            x = step(x)
        return x


@DATASETS.register_module()
class Transformed(torch.utils.data.Dataset):
    def __init__(self):
        self.pipeline = Steps(quick, Sleepy())

    def __len__(self):
        return 32

    def __getitem__(self, index):
        return self.pipeline(torch.randn(16)), index % 4
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "dr_transformed.py").write_text(SOURCE)
    yield
    if sys.modules.pop("dr_transformed", None) is not None:
        from devrun.registry import DATASETS

        del DATASETS.module_dict["Transformed"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_that_waits_for_data_names_the_slowest_transform(
    module, tmp_path, capsys, workers
):
    data = {"samples_per_gpu": 8, "workers_per_gpu": workers}
    cfg = {**CONFIG, "data": {**data, "train": {"type": "Transformed"}}}
    del cfg["evaluation"]
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump(cfg))
    words = ["train", "slow.yaml", "--work-dir", "run", "--import", "dr_transformed"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "data: " in out and "; the slowest transform is Sleepy (" in out
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["sample_ms"]["Sleepy"] > 9 > facts["sample_ms"]["quick"]
    assert set(facts["sample_ms"]) == {"", "quick", "Sleepy"}
    assert facts["seconds"]["data"] > facts["seconds"]["compute"]
    run = read_run(tmp_path / "run")
    names = ("wait_time", "copy_time", "compute_time")
    parts = [run.curve(name, "train").values for name in names]
    assert (sum(parts) <= run.curve("time", "train").values + 3e-5).all()


def test_watching_changes_nothing_and_ends_with_an_error():
    class Bad:
        def __call__(self, x):
            raise ValueError

    class Data:
        def __init__(self, transform):
            self.transform = transform

        def __getitem__(self, index):
            return self.transform(index)

    data = Data(Bad())
    with pytest.raises(ValueError), watched(transforms_of(data)) as spent:
        data[0]
    assert sys.getprofile() is None
    assert set(spent) == {"Bad", ""}
    data = Data(lambda x: time.sleep(0.002))
    sys.setprofile(print_nothing)
    try:
        with watched(transforms_of(data)) as spent:
            data[0]
        assert sys.getprofile() is print_nothing
    finally:
        sys.setprofile(None)
    assert spent == {}


def print_nothing(frame, event, argument):
    pass


@pytest.mark.parametrize("odd", [None, 3, [1], {"": "x"}, {"a": 10**400}, {"a": 0}])
def test_odd_facts_name_no_transform(odd):
    words = bound_of({"data": 2.0, "compute": 1.0}, {"sample_ms": odd})
    assert words == (
        "data: 67% of the time; the device waits for samples: more workers_per_gpu, "
        "lighter transforms"
    )


def test_the_slowest_may_be_the_reading():
    facts = {"sample_ms": {"": 5.0, "Crop": 1.0}}
    words = bound_of({"data": 2.0}, facts)
    assert "most of a sample is reading it, no transform (5 of 6 ms a sample)" in words


def test_a_short_run_says_how_much_was_its_start():
    words = bound_of({"compute": 2.0, "data": 1.0, REST: 7.0})
    assert words.startswith("compute: 20% of the time, 70% its start and end; ")
