"""A run that a crash or a kill ended is told, and marked, by the next start."""

import json
import os
import signal
from pathlib import Path

import pytest

from devrun.cli.lost import mark_lost
from tests.cli.conftest import record
from tests.support import zygote

HOOK = """
import ctypes, os
from devrun import HOOKS, Hook

@HOOKS.register_module()
class CrashingHook(Hook):
    def __init__(self, how): self.how = how
    def after_train_iter(self, runner):
        if runner.iter == 5 and self.how == "segv": ctypes.string_at(0)
        if runner.iter == 5 and self.how == "kill": os.kill(os.getpid(), 9)
        if runner.iter == 5 and self.how == "exit": os._exit(0)
"""


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("segv", -signal.SIGSEGV),
        ("kill", -signal.SIGKILL),
        ("exit", 0),
    ],
)
def test_a_run_that_is_gone_is_told_and_marked(config, train, tmp_path, how, status):
    (tmp_path / "crashing.py").write_text(HOOK)
    file = config(
        custom_imports={"imports": ["crashing"]},
        custom_hooks=[{"type": "CrashingHook", "how": how}],
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = zygote.run(["-m", "devrun", "train", file], env, tmp_path, 60)
    assert done.returncode in (status, 128 - status), done.stderr
    place = Path("work_dirs/small")
    assert record(place)["status"] == "running"
    (log,) = place.glob("*.log")
    assert ("Fatal Python error" in log.read_text()) == (how == "segv")
    assert ("in after_train_iter" in log.read_text()) == (how == "segv")

    # the next start in the folder tells it, and goes on
    again = ("--work-dir", place, "--resume-from", "auto")
    code, _, text = train(config(), *again)
    assert code == 0
    (before,) = place.glob("run-*.json")
    assert json.loads(before.read_text())["status"] == "lost"
    (note,) = [line for line in text.splitlines() if "ended without a word" in line]
    assert "killed, crashed or out of memory" in note
    assert "without a word" not in train(config(), *again)[2]
    assert record(place)["status"] == "done"


@pytest.mark.parametrize("text", ["{", "[]", '{"status": "done"}', "\xff"])
def test_a_file_that_says_nothing_of_the_kind_stays(tmp_path, text):
    (tmp_path / "run.json").write_text(text, encoding="latin-1")
    assert mark_lost(tmp_path) is None
    assert (tmp_path / "run.json").read_text(encoding="latin-1") == text
