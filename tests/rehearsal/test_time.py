"""Where the time of a training went."""

import json
import re
import time

import torch
import yaml

from devrun.cli.main import main
from devrun.registry import DATASETS
from devrun.rehearsal.report.shares import REST, bound_of, shares_of
from tests.cli.conftest import CONFIG


class Sleepy(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.randn(16), index % 4


def test_a_run_that_waits_for_data_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATASETS.module_dict, "Sleepy", Sleepy)
    cfg = {**CONFIG, "data": {**CONFIG["data"], "train": {"type": "Sleepy"}}}
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump(cfg))
    assert main(["train", "slow.yaml", "--work-dir", "run"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^time: .*% of the time; ", out, re.MULTILINE)
    assert "report: devrun report run" in out
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    shares = shares_of(facts)
    shares.pop(REST, None)  # the start, which a busy machine draws out
    words = bound_of(shares)
    assert words.startswith("data: ") and "the device waits for samples" in words
    assert facts["seconds"]["data"] > facts["seconds"]["compute"]


def test_a_short_run_says_how_much_was_its_start():
    words = bound_of({"compute": 2.0, "data": 1.0, REST: 7.0})
    assert words.startswith("the rest: 70% of the time; the start and the end")
