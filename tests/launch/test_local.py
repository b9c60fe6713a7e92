"""`--num-devices N`: processes of this machine, what they say and how they end."""

import json
import os
import re
import signal
import time

import pytest

from tests.launch.conftest import PATIENCE, ROOT, children, told


def test_two_processes_are_one_run_with_one_output(place):
    place.write({"type": "Pids", "path": "{place}/pid"})
    status, out, err = place.run(env={"OMP_NUM_THREADS": "3"})
    assert status == 0, err
    assert out.count("done: ") == 1
    assert err.count("Iter [12/12]") == 1
    assert "on cpu x 2 processes" in err
    assert json.loads((place.work_dir / "run.json").read_text())["world_size"] == 2
    first = (place.path / "pid-0").read_text()
    assert first.endswith(" 3"), "the number that the user has set stays"


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_command_ends_as_the_process_that_failed(place, rank):
    place.write({"type": "Strike", "how": "raises", "rank": rank})
    status, _, err = place.run()
    assert status == 4, err
    prefix = f"rank {rank}: " if rank else ""
    assert told(err) == [
        f"devrun: error: {prefix}sample 7 is broken (epoch 1, iteration 7)"
    ]
    assert "Traceback" not in err


def test_a_killed_process_is_named(place):
    place.write({"type": "Strike", "how": "dies"})
    status, _, err = place.run()
    assert status == 7, err
    (line,) = told(err)
    assert line.startswith("devrun: error: rank 1 was ended by SIGKILL")


def test_what_all_find_wrong_is_said_once(place):
    place.write({"type": "NoSuchHook"})
    status, _, err = place.run()
    assert status == 2, err
    (line,) = told(err)
    assert "run.yaml" in line
    assert "NoSuchHook" in line
    assert "rank" not in line


def test_the_script_of_the_repository_does_it_too(place):
    place.write()
    tool = str(ROOT / "tools" / "train.py")
    process = place.start(
        "run.yaml", "--num-devices=2", program=(tool,), env={"PYTHONPATH": ""}
    )
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err


@pytest.mark.parametrize(
    ("name", "times", "status", "everyone"),
    [
        ("SIGINT", 1, 130, False),
        pytest.param("SIGTERM", 1, 75, False, marks=pytest.mark.slow),
        ("SIGTERM", 1, 75, True),
        ("SIGTERM", 2, 143, False),
        pytest.param("SIGTERM", 2, 143, True, marks=pytest.mark.slow),
    ],
)
def test_a_signal_reaches_the_processes_once(place, name, times, status, everyone):
    """`everyone`: all get it together, as systemd and SLURM's cgroup do it."""
    runner = {"type": "IterBasedRunner", "max_iters": 10**6}
    place.write({"type": "Slow", "seconds": 0.02}, runner=runner)
    words = ("train", "run.yaml", "--work-dir", "work", "--num-devices", 2)
    process = place.start(*words, "--no-progress")
    for line in process.stderr:
        if "Iter [8/" in line:
            break
    for time_ in range(times):
        time.sleep(0.15 * time_)  # two at once would be one
        for pid in [process.pid, *(children(process.pid) if everyone else ())]:
            os.kill(pid, signal.Signals[name])
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == status, err
    assert err.count("finishing this iteration") == 1
    assert ("again" in err) == (times > 1)
    if times == 1:
        (line,) = [line for line in told(err) if "interrupted" in line]
        saved = re.search(r"after \d+ epochs and (\d+) iterations; saved", line)
        assert saved, line
        newest = place.work_dir / "checkpoints" / f"step-{int(saved[1]):08d}"
        assert (newest / "MANIFEST.json").is_file()
        facts = json.loads((place.work_dir / "run.json").read_text())
        assert (facts["status"], facts["exit_code"]) == ("interrupted", status)


@pytest.mark.parametrize(
    "seconds",
    [2.0, *(pytest.param(at, marks=pytest.mark.slow) for at in (1.0, 3.5, 5, 7))],
)
def test_ctrl_c_at_any_stage_leaves_nothing_behind(place, seconds):
    runner = {"type": "IterBasedRunner", "max_iters": 10**6}
    place.write({"type": "Slow", "seconds": 0.02}, runner=runner)
    words = ("train", "run.yaml", "--work-dir", "work", "--num-devices", 2)
    process = place.start(*words, "--no-progress")
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert len([line for line in told(err) if "interrupted:" in line]) == 1


def test_a_launcher_that_is_killed_takes_its_processes_along(place):
    runner = {"type": "IterBasedRunner", "max_iters": 10**6}
    place.write({"type": "Slow", "seconds": 0.02}, runner=runner)
    words = ("train", "run.yaml", "--work-dir", "work", "--num-devices", 2)
    with open(place.path / "output", "w+") as output:
        process = place.start(*words, output=output)
        end = time.monotonic() + PATIENCE
        while "Iter [4/" not in (place.path / "output").read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    while place.processes():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--num-devices", "0"), "neither a number of 1 or more nor 'auto'"),
        (("--num-devices", "two"), "neither a number of 1 or more nor 'auto'"),
        (("--num-devices", "2", "--launcher", "pytorch"), "clash"),
    ],
    ids=" ".join,
)
def test_flags_that_mean_nothing_get_one_line(words, said, place, capsys, monkeypatch):
    from tests.support.command import command

    monkeypatch.chdir(place.path)
    status, _, err = command(capsys, "train", place.write(), *words)
    assert status == 2
    (line,) = err.splitlines()
    assert said in line


def test_one_of_several_processes_starts_no_others(place, capsys, monkeypatch):
    from tests.support.command import command

    monkeypatch.chdir(place.path)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "1")
    status, _, err = command(capsys, "train", place.write(), "--num-devices", 2)
    assert status == 2
    assert "RANK and WORLD_SIZE" in err


@pytest.mark.slow
def test_an_evaluation_in_two_processes_finds_the_same(place):
    data = {
        "samples_per_gpu": 2,
        "workers_per_gpu": 0,
        "train": {"type": "Numbered", "length": 40},
        "val": {"type": "Numbered", "length": 21},
    }
    place.write(data=data, evaluation={"metric": "accuracy"})
    assert place.run("--num-devices", 1)[0] == 0
    words = ("test", "run.yaml", "work", "--split", "val", "--no-progress")
    found = []
    for number in (1, 2):
        process = place.start(*words, "--num-devices", number)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        found.append(out)
    assert found[0] == found[1]
    assert "accuracy" in found[0]
