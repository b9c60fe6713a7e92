"""A run that a crash or a kill ended is told, and marked, by the next start."""

import json
import os
import signal
from pathlib import Path

import pytest

from devrun.cli.lost import mark_lost, mark_lost_siblings
from devrun.lock import lock_directory
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
    ("how", "status", "words"),
    [
        ("segv", -signal.SIGSEGV, "Segmentation fault; its stack"),
        ("kill", -signal.SIGKILL, "killed, or out of memory"),
        ("exit", 0, "killed"),
    ],
)
def test_a_run_that_is_gone_is_told_and_marked(
    config, train, tmp_path, how, status, words
):
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

    if how == "kill":  # the next start goes on with it
        words = (config(), "--work-dir", place, "--resume-from", "auto")
        code, _, text = train(*words)
        assert code == 0
        assert "ended without a word (killed, or out of memory)" in text
        (before,) = place.glob("run-*.json")
        assert json.loads(before.read_text())["status"] == "lost"
        return
    # the next start goes to another folder, and tells all the same
    code, _, text = train(config())
    assert code == 0
    (note,) = [line for line in text.splitlines() if "ended without a word" in line]
    assert words in note
    assert f"--work-dir {place} --resume-from auto" in note
    facts = record(place)
    assert (facts["status"], facts["exit_code"]) == ("lost", None)
    assert "ended without a word" in facts["error"]
    assert "without a word" not in train(config())[2]
    # and it goes on
    assert train(config(), "--work-dir", place, "--resume-from", "auto")[0] == 0
    assert record(place)["status"] == "done"


def test_a_run_that_goes_on_is_not_marked(train, config):
    place = Path("work_dirs/small")
    place.mkdir(parents=True)
    (place / "run.json").write_text('{"status": "running", "timestamp": "x"}')
    (place / "checkpoints" / "step-1").mkdir(parents=True)
    ready, wait = os.pipe(), os.pipe()
    if not (child := os.fork()):
        lock_directory(place)
        os.write(ready[1], b"x")
        os.read(wait[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    assert mark_lost_siblings(Path("work_dirs/small-2")) == []
    os.write(wait[1], b"x")
    os.waitpid(child, 0)
    for end in (*ready, *wait):
        os.close(end)
    assert record(place)["status"] == "running"
    (note,) = mark_lost_siblings(Path("work_dirs/small-2"))
    assert "work_dirs/small " in note
    assert record(place)["status"] == "lost"


@pytest.mark.parametrize("text", ["{", "[]", '{"status": "done"}', "\xff"])
def test_a_file_that_says_nothing_of_the_kind_stays(tmp_path, text):
    (tmp_path / "run.json").write_text(text, encoding="latin-1")
    assert mark_lost(tmp_path) is None
    assert (tmp_path / "run.json").read_text(encoding="latin-1") == text
