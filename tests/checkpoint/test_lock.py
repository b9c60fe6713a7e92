"""`run.lock`: one run in a directory, and no trouble from one that died."""

import os
import signal
import subprocess
import sys

import pytest

from devrun.errors import ConfigError
from devrun.lock import LOCK, lock_directory, unlock_directory

HOLD = (
    "import sys; from devrun.lock import lock_directory\n"
    "lock_directory(sys.argv[1]); print('held', flush=True); sys.stdin.read()\n"
)


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_told_who_holds_it(tmp_path, holder):
    with pytest.raises(ConfigError, match=f"pid {holder.pid} on ") as caught:
        lock_directory(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_killed_holder_is_no_obstacle(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / LOCK).exists()
    lock_directory(tmp_path)
    unlock_directory(tmp_path)


def test_a_child_that_outlives_its_parent_does_not_keep_it(tmp_path, in_child):
    """As data workers do for a moment after a kill -9."""
    reader, writer = os.pipe()

    def run():
        lock_directory(tmp_path)
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            signal.pause()
            os._exit(0)

    assert in_child(run) == 0
    orphan = int(os.read(reader, 20))
    try:
        lock_directory(tmp_path)
    finally:
        os.kill(orphan, signal.SIGKILL)
        unlock_directory(tmp_path)


def test_two_runs_of_one_process_are_two(tmp_path):
    lock_directory(tmp_path, "first")
    for other in ("second", None):
        with pytest.raises(ConfigError, match="run of this process: .*work_dir"):
            lock_directory(tmp_path, other)
        unlock_directory(tmp_path, other)  # it holds nothing
    unlock_directory(tmp_path, "first")
    lock_directory(tmp_path, "second")
    unlock_directory(tmp_path, "second")


def test_a_link_in_its_place_is_refused(tmp_path):
    (tmp_path / "target").write_text("mine")
    (tmp_path / LOCK).symlink_to(tmp_path / "target")
    with pytest.raises(OSError):
        lock_directory(tmp_path)
    assert (tmp_path / "target").read_text() == "mine"
