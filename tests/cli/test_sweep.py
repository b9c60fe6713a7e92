"""A run for each combination of values, of which those that are done stay."""

import signal
import subprocess
import sys
import time

import pytest

from devrun.cli.main import main
from tests.cli.conftest import one_error, record

LONG = {"type": "EpochBasedRunner", "max_epochs": 10**6}


def test_a_sweep_runs_each_combination_and_goes_on(config, train, tmp_path):
    words = ("--sweep", "optimizer.lr=0.1,1e30", "seed=1", "--jobs", "2")
    words = (config(evaluation=None), *words, "--work-dir", "out", "--no-validate")
    status, out, _ = train(*words)
    assert status == 5  # of the one that diverged
    assert "lr=1e+30,seed=1: status 5" in out
    folders = {path.name for path in tmp_path.glob("out/*") if path.is_dir()}
    assert folders == {"lr=0.1,seed=1", "lr=1e+30,seed=1"}
    title, *rows = [line.split() for line in out.splitlines()[-3:]]
    assert {"optimizer.lr", "seed"} <= set(title)
    assert len(rows) == 2
    found = sorted(str(path) for path in tmp_path.glob("out/*"))  # OUT/* of a shell
    assert main(["report", *found, "--table", "--keys", "optimizer.lr"]) == 0
    began = record("out/lr=0.1,seed=1")["started"]
    assert "lr=0.1,seed=1: done already" in train(*words)[1]
    assert record("out/lr=0.1,seed=1")["started"] == began


def test_a_wrong_combination_is_refused_before_any_run(config, train, tmp_path):
    error = one_error(train(config(), "--sweep", "seed=1,-2", "--work-dir", "out"), 2)
    assert "seed: takes an integer" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("flag", [("--overwrite",), ("--resume-from", "auto")])
def test_a_sweep_goes_on_by_itself(config, train, flag):
    assert "--sweep goes on" in one_error(
        train(config(), "--sweep", "seed=1", *flag), 2
    )


def test_a_signal_ends_the_runs_in_order(config, tmp_path):
    path = config(runner=LONG, evaluation=None)
    words = ("--sweep", "seed=1,2", "--work-dir", "out", "--no-validate")
    process = subprocess.Popen([sys.executable, "-m", "devrun", "train", path, *words])
    log = tmp_path / "out" / "seed=1"
    while not list(log.glob("checkpoints/step-*")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait() in (75, 143)
    assert record("out/seed=1")["exit_code"] == 75
    assert not (tmp_path / "out" / "seed=2").exists()
