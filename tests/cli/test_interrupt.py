"""Real processes, really signalled."""

import os
import pty
import re
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import record
from tests.support import zygote

TRAIN = ["-m", "devrun", "train", "--work-dir", "out"]
ENDLESS = {"type": "EpochBasedRunner", "max_epochs": 100000}


def started(path, *words):
    """A training process that has logged its first iterations."""
    process = zygote.start([*TRAIN, path, *words, "--no-progress"])
    for line in process.stderr:
        if re.search(r"Epoch \[2\]", line):
            return process
    raise AssertionError(f"ended early with {process.wait()}")


def ended(process):
    _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.parametrize(
    ("name", "status", "interval"),
    [("SIGTERM", 75, 100000), ("SIGINT", 130, 100000), ("SIGUSR1", 75, 1)],
)
def test_a_signal_saves_and_the_run_goes_on_later(
    config, train, name, status, interval
):
    saving = {"interval": interval, "async": interval == 1, "max_keep_ckpts": 2}
    path = config(
        runner=ENDLESS, evaluation={"interval": 100000}, checkpoint_config=saving
    )
    process = started(path)
    process.send_signal(signal.Signals[name])
    found, err = ended(process)
    assert found == status, err
    (line,) = [x for x in err.splitlines() if x.startswith("devrun: interrupted: ")]
    assert f"stopped by {name} after" in line
    facts = record("out")
    assert (facts["status"], facts["stopped"]) == ("interrupted", name)
    reached = int(re.search(r"(\d+) iterations", line)[1])
    assert Path(f"out/checkpoints/step-{reached:08d}").is_dir()
    epochs = reached // 4 + 2
    again = config(
        "again.yaml", runner={"type": "EpochBasedRunner", "max_epochs": epochs}
    )
    found, _, err = train(again, "--work-dir", "out", "--resume-from", "auto")
    assert found == 0, err
    assert record("out")["iterations"] == epochs * 4


def test_without_checkpoints_a_signal_is_143(config):
    path = config(
        runner=ENDLESS, checkpoint_config=None, evaluation={"interval": 10**5}
    )
    process = started(path)
    process.send_signal(signal.SIGTERM)
    found, err = ended(process)
    assert found == 143, err
    assert "nothing saved" in err


def test_a_closed_terminal_saves(config):
    path = config(runner=ENDLESS, evaluation={"interval": 100000})
    terminal, end = pty.openpty()
    process = zygote.start([*TRAIN, path], stdin=end, stdout=end, stderr=end)
    os.close(end)
    shown = b""
    while b"Epoch [2]" not in shown:
        shown = shown[-100:] + os.read(terminal, 1000)
    os.close(terminal)
    assert process.wait(60) == 75
    facts = record("out")
    assert "stopped by SIGHUP" in facts["error"]
    reached = int(re.search(r"(\d+) iterations", facts["error"])[1])
    assert Path(f"out/checkpoints/step-{reached:08d}").is_dir()
