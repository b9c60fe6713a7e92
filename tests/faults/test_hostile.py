"""Files from strangers: nothing in them is run, nothing is written."""

import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path

import pytest

from devrun.checkpoint import read_checkpoint, read_latest
from devrun.checkpoint.pickled import load_pickled
from devrun.errors import DevrunError
from tests.faults import harness
from tests.faults.harness import run
from tests.faults.hostile import CORPUS, PLAIN_DATA, PTH

RUNS_CODE = ("exec", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn",
             "subprocess.Popen", "socket.connect", "ctypes.dlopen", "pty.spawn",
             "pickle.find_class")  # fmt: skip
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
MEMORY = 1 << 30


@pytest.fixture(scope="module")
def good(undisturbed):
    return harness.newest(undisturbed() / "work" / "checkpoints")


def judged(read, paths, report):
    """In a child: what reading each of `paths` did, as JSON in the file `report`."""
    events = []
    watching = []

    def audit(event, arguments):
        if not watching:
            return
        code = arguments[0] if event == "exec" else None
        if os.path.exists(getattr(code, "co_filename", "")):
            return  # a module of Python's own is imported
        if event.startswith(RUNS_CODE):
            events.append(f"{event} {arguments!r:.100}")
        elif event == "open" and isinstance(arguments[2], int):
            if arguments[2] & WRITES and arguments[0] != os.devnull:
                events.append(f"opened for writing: {arguments[0]!r:.100}")

    good, *paths = paths
    read(good)  # whatever is imported lazily is there now
    sys.addaudithook(audit)
    found = {}
    for path in paths:
        events.clear()
        start = time.monotonic()
        watching.append(True)
        try:
            read(path)
            said = None
        except DevrunError as error:
            said = str(error)
        except Exception as error:  # noqa: BLE001 - told apart by the test
            said = f"\n{type(error).__name__}: {error}"
        watching.clear()
        seconds = time.monotonic() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        found[path] = [said, seconds, memory, list(events)]
    with open(report, "w") as file:
        json.dump(found, file)
    return 0


def check(found, count, figures, what):
    problems = {}
    for path, (said, seconds, memory, events) in found.items():
        if said is None and Path(path).with_name("what").read_text() in PLAIN_DATA:
            said = ""
        if said is None or not said.isprintable() or len(said) > 2000:
            problems[path] = f"said {said!r:.200}"
        elif seconds > 5 or memory > MEMORY or events:
            problems[path] = f"{seconds:.1f} s, {memory >> 20} MiB, {events}"
    assert not problems, problems
    assert len(found) == count
    figures(
        "F20",
        f"{count} of {count} hostile {what} refused in one line, no code run, nothing "
        f"written, at most {max(m for _, _, m, _ in found.values()) >> 20} MiB and "
        f"{max(s for _, s, _, _ in found.values()):.1f} s",
    )


def test_hostile_checkpoints(good, tmp_path, figures):
    paths = [str(good)]
    for number, (name, damage) in enumerate(CORPUS.items()):
        path = tmp_path / str(number) / "step-00000040"
        shutil.copytree(good, path)
        damage(path)
        paths.append(str(path))
        (path.parent / "what").write_text(name)
    report = tmp_path / "report"
    status, said = run(
        judged, read_checkpoint, paths, report, output=tmp_path / "o", seconds=120
    )
    assert status == 0, said
    check(json.loads(report.read_text()), len(CORPUS), figures, "checkpoints")
    assert not list(tmp_path.rglob("ran"))
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["o", "report", *map(str, range(len(CORPUS)))]
    )


def test_hostile_pth_files(tmp_path, figures):
    import torch

    torch.save({"state_dict": {"w": torch.zeros(2)}}, tmp_path / "good.pth")
    paths = [str(tmp_path / "good.pth")]
    for name, make in PTH.items():
        (tmp_path / name).mkdir()
        make(tmp_path / name / "model.pth")
        paths.append(str(tmp_path / name / "model.pth"))
    report = tmp_path / "report"
    status, said = run(
        judged, load_pickled, paths, report, output=tmp_path / "o", seconds=120
    )
    assert status == 0, said
    check(json.loads(report.read_text()), len(PTH), figures, ".pth files")
    assert not list(tmp_path.rglob("ran"))


def test_the_harness_notices_code_that_runs(tmp_path):
    """`pickle.load` in the place of devrun's reader is seen by the audit."""
    (tmp_path / "good").write_bytes(b"\x80\x02N.")
    PTH["evil_pickle"](tmp_path / "evil")
    paths = [str(tmp_path / "good"), str(tmp_path / "evil")]
    report = tmp_path / "report"
    assert run(judged, careless, paths, report)[0] == 0
    ((_, _, _, events),) = json.loads(report.read_text()).values()
    assert any("os.system" in event for event in events)
    assert (tmp_path / "ran").exists()


def careless(path):
    import pickle

    with open(path, "rb") as file:
        pickle.load(file)


def test_auto_passes_each_of_them_over(good, tmp_path):
    """Each beside a good one: the good one is read, whatever the other claims."""
    shutil.copytree(good, tmp_path / "step-00000003")
    for name, damage in CORPUS.items():
        if name in PLAIN_DATA:
            continue
        path = tmp_path / "step-00000040"
        shutil.copytree(good, path)
        damage(path)
        assert read_latest(tmp_path).path.name == "step-00000003", name
        shutil.rmtree(path)
        (tmp_path / "MANIFEST.json").unlink(missing_ok=True)
        (tmp_path / "elsewhere.json").unlink(missing_ok=True)
