"""Where the time of a training went."""

from __future__ import annotations

import json
import re
import sys

import pytest
import yaml

from devrun.cli.main import main
from devrun.rehearsal.report.runs import read_run
from devrun.rehearsal.report.shares import REST, bound_of, shares_of
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
def test_a_run_that_waits_for_data_says_so(module, tmp_path, capsys, workers):
    data = {"samples_per_gpu": 8, "workers_per_gpu": workers}
    cfg = {**CONFIG, "data": {**data, "train": {"type": "Transformed"}}}
    del cfg["evaluation"]
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump(cfg))
    words = ["train", "slow.yaml", "--work-dir", "run", "--import", "dr_transformed"]
    assert main(words) == 0
    assert re.search(r"^time: .*% of the time; ", capsys.readouterr().out, re.MULTILINE)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    shares = shares_of(facts)
    shares.pop(REST, None)  # the start, which a busy machine draws out
    words = bound_of(shares)
    assert words.startswith("data: ") and "the device waits for samples" in words
    assert facts["seconds"]["data"] > facts["seconds"]["compute"]
    run = read_run(tmp_path / "run")
    names = ("wait_time", "copy_time", "compute_time")
    parts = [run.curve(name, "train").values for name in names]
    assert (sum(parts) <= run.curve("time", "train").values + 3e-5).all()


def test_a_short_run_says_how_much_was_its_start():
    words = bound_of({"compute": 2.0, "data": 1.0, REST: 7.0})
    assert words.startswith("the rest: 70% of the time; the start and the end")
