"""Several machines, as several commands on this one, that meet at a port."""

from __future__ import annotations

import signal
import socket
import subprocess

import pytest

from devrun.cli.signals import TakenDown
from devrun.errors import DeviceUnavailableError
from devrun.parallel.launch import Launch, launch
from tests.launch.conftest import PATIENCE, told
from tests.support.zygote import free_port


def started(place, *words, config="run.yaml", port, work_dir="work", nnodes=2):
    return place.start(
        "train", config, "--no-progress", "--work-dir", work_dir, "--nnodes", nnodes,
        "--rdzv-endpoint", f"localhost:{port}", *words,
    )  # fmt: skip


def both(place, *words, **changes):
    """[(status, stderr)] of two machines; `changes` are of the second."""
    port = free_port()
    first = started(place, *words, port=port)
    second = started(place, *words, **{"port": port, **changes})
    said = [process.communicate(timeout=PATIENCE)[1] for process in (first, second)]
    return list(zip((first.returncode, second.returncode), said, strict=True))


def test_two_machines_are_one_run_and_the_one_at_fault_says_the_cause(place):
    place.write({"type": "Strike", "how": "raises"})
    (status, cause), (other, whole) = sorted(both(place))
    assert (status, other) == (4, 7), (cause, whole)
    line = "devrun: error: rank 1: sample 7 is broken (epoch 1, iteration 7)"
    assert told(cause) == [line]
    assert "another process of the run has ended" in told(whole)[-1]
    assert "on cpu x 2 processes" in whole
    assert "Iter [" not in cause


@pytest.mark.slow
def test_a_process_killed_on_one_machine_starts_all_again(place):
    place.write({"type": "Strike", "how": "dies"})
    (status, first), (other, second) = both(place, "--max-restarts", 2)
    assert (status, other) == (0, 0), (first, second)
    assert "Iter [12/12]" in first + second


def test_another_config_on_one_of_the_machines_is_named(place):
    place.write()
    place.write(name="other.yaml", optimizer={"type": "AdamW", "lr": 0.5})
    (status, first), (other, second) = both(place, config="other.yaml")
    assert (status, other) == (2, 2), (first, second)
    for said in (first, second):
        (line,) = told(said)
        assert "optimizer.lr is" in line
        assert "0.5 on rank" in line
        assert "0.01 on rank" in line


@pytest.mark.slow
def test_a_folder_that_one_of_the_machines_lacks_is_named(place):
    """Before the first update, not in the first save."""
    place.write(parallel={"type": "fsdp"})
    (status, first), (other, second) = both(place, work_dir="elsewhere")
    assert (status, other) == (8, 8), (first, second)
    (line,) = told(first)
    assert "elsewhere/checkpoints' is not there for this process" in line
    assert told(second) == [line]
    assert "Iter [" not in first + second


def test_a_silent_program_at_the_port_gets_one_line(monkeypatch):
    monkeypatch.setattr("devrun.parallel.launch._TO_ANSWER", 2)
    with socket.create_server(("localhost", 0)) as taken, TakenDown() as signals:
        where = f"localhost:{taken.getsockname()[1]}"
        how = Launch(1, nodes=(2, 2), endpoint=where)
        with pytest.raises(DeviceUnavailableError) as error:
            launch(["train"], how, signals, print)
    assert f"could not meet at {where}: what listens there did not" in str(error.value)


@pytest.mark.slow
def test_a_machine_that_comes_later_takes_part(place):
    """As one that comes back does; the run goes on where it was saved last."""
    took = {"type": "Took", "path": "{place}/samples"}
    ended = {"type": "IterBasedRunner", "max_iters": 60}
    place.write(took, {"type": "Slow", "seconds": 0.2}, runner=ended)
    port = free_port()
    first = started(place, port=port, nnodes="1:2")
    for line in first.stderr:
        if "Iter [8/" in line:
            break
    second = started(place, port=port, nnodes="1:2")
    said = [process.communicate(timeout=PATIENCE)[1] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    updates = [
        int(line.split()[1])
        for line in (place.path / "samples-1").read_text().splitlines()
    ]
    assert updates[0] > 8
    assert updates[-1] == 60


@pytest.mark.slow
def test_ctrl_c_while_waiting_for_the_other_machine(place):
    place.write()
    process = started(place, port=free_port())
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(9)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert told(err) == [
        "devrun: interrupted: stopped by SIGINT before the first iteration"
    ]
