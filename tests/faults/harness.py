"""Runs in processes that start at once, forked from one that has imported torch."""

import atexit
import getpass
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from devrun.checkpoint import list_checkpoints, verify_checkpoint
from devrun.checkpoint.names import parse_leftover
from devrun.errors import CheckpointError
from tests import failpoints

ROOT = Path(__file__).resolve().parents[2]
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["pytest", "tests.faults.parts", "tests.faults.preload"])
CONFIG = {
    "custom_imports": {"imports": ["tests.faults.parts"]},
    "model": {"type": "noisy_net"},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 2,
        "workers_per_gpu": 0,
        "train": {"type": "Noisy"},
    },
    "optimizer": {"type": "AdamW", "lr": 0.01},
    "optimizer_config": {"cumulative_iters": 2},
    "lr_config": {"policy": "CosineAnnealing", "min_lr": 0.0, "by_epoch": False},
    "runner": {"type": "IterBasedRunner", "max_iters": 40},
    "checkpoint_config": {"interval": 3, "by_epoch": False, "max_keep_ckpts": 3},
    "log_config": {"interval": 10, "hooks": [{"type": "TextLoggerHook"}]},
    "custom_hooks": [{"type": "EMAHook", "momentum": 0.1}],
    "seed": 5,
    "device": "cpu",
}


def write_config(place, **changes):
    """The config with some keys changed, as a file in `place`; its path.

    Updates are acknowledged in `place/said`.
    """
    cfg = {**json.loads(json.dumps(CONFIG)), **changes}
    said = {"type": "Acknowledge", "path": str(Path(place) / "said")}
    cfg["custom_hooks"] = [*cfg["custom_hooks"], said]
    path = Path(place) / "run.yaml"
    path.write_text(yaml.safe_dump(cfg))
    return path


def command(*words):
    """`devrun WORDS` in this process; its exit status."""
    from devrun.cli.main import main

    try:
        return main([str(word) for word in words])
    except SystemExit as stop:
        return stop.code


def counted(*words):
    """`devrun WORDS`, which then says how many file operations it has come to."""
    status = command(*words)
    print("file operations:", failpoints.reached())
    return status


def operations(said):
    """How many that were, from what it said."""
    return int(said.split("file operations: ")[1].split()[0])


def train(place, *words, work_dir=None):
    """The words of a run in `place` that goes on with what is there."""
    place = Path(place)
    work_dir = work_dir or place / "work"
    return [
        "train", place / "run.yaml", "--work-dir", work_dir, "--no-progress",
        "--resume-from", "auto", *words,
    ]  # fmt: skip


def numbers(sample, full):
    """A few in the default run, all of them in the long one."""
    return [sample, pytest.param(full, marks=pytest.mark.faults)]


def later(*values):
    """For the long run only."""
    return [pytest.param(value, marks=pytest.mark.faults) for value in values]


def _is_a_probe(path):
    """Also one that a worker, which ends after its parent, has removed meanwhile."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return True
    empty = stat.S_ISREG(facts.st_mode) and not facts.st_size
    return path.name.startswith("tmp") and empty


class Child:
    """A function in a process, and a session, of its own; its output goes to a file.

    Temporary files go to a directory of its own, in which it must leave none. One of
    its file operations fails where a `failpoint` is given.
    """

    def __init__(
        self, function, *args, output=os.devnull, environment=None, failpoint=None
    ):
        self.output = Path(output)
        self._folder = tempfile.mkdtemp(prefix="faults-")
        # where torch's compiler, which another test may have loaded, has its files
        compiled = f"{tempfile.gettempdir()}/torchinductor_{getpass.getuser()}"
        environment = {
            "TMPDIR": self._folder,
            "TORCHINDUCTOR_CACHE_DIR": compiled,
            **(environment or {}),
        }
        self._process = FORKED.Process(
            target=_run, args=(function, args, str(output), environment, failpoint)
        )
        self._process.start()
        self.pid = self._process.pid

    def kill(self, number=signal.SIGKILL, *, group=False):
        """Send a signal; to a process that has ended, nothing."""
        try:
            (os.killpg if group else os.kill)(self.pid, number)
        except ProcessLookupError:
            pass

    def running(self):
        return self._process.is_alive()

    def wait(self, seconds=60):
        """The exit status, negative for a signal; killed and an error if it is late."""
        self._process.join(seconds)
        if self._process.exitcode is None:
            self.kill(group=True)
            self._process.join()
            raise AssertionError(f"still running after {seconds} s: {self.said()}")
        # torch's DataLoader opens empty ones to see how many it may, and the notice of
        # a worker's death can come between one's making and its removal
        left = [p.name for p in Path(self._folder).glob("*") if not _is_a_probe(p)]
        shutil.rmtree(self._folder, ignore_errors=True)
        assert self._process.exitcode == -signal.SIGKILL or left == [], left
        return self._process.exitcode

    def said(self):
        """All it has written to stdout and stderr."""
        return self.output.read_text() if self.output.is_file() else ""


def _run(function, args, output, environment, failpoint):
    os.setsid()
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)
    # where another test has started the server, it does not have it yet; torch makes a
    # temporary folder then, which a process that is ended leaves behind
    importlib.import_module("tests.faults.preload")
    os.environ.update(environment)
    if failpoint is not None:
        failpoints.arm(failpoint)
    tempfile.tempdir = None  # it knows that of the server
    multiprocessing.set_start_method("fork", force=True)  # as a run of its own has it
    status = function(*args)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # too late: it is over
    sys.stdout.flush()
    atexit._run_exitfuncs()  # which a process of multiprocessing leaves out
    sys.exit(status)


def run(function, *args, output=os.devnull, seconds=60, **options):
    """(exit status, output) of a child that is left to end."""
    child = Child(function, *args, output=output, **options)
    return child.wait(seconds), child.said()


@contextmanager
def importable():
    """The server inherits where to find the repository."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), before]))
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def living(session):
    """Command lines of a session's processes that do not end within a second."""
    end = time.monotonic() + 1
    while (found := _living(session)) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def _living(session):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it ended meanwhile
            continue
        if int(its) == session and state not in "ZX":
            words = path.with_name("cmdline").read_bytes().split(b"\0")
            found.append(f"{path.parent.name} {b' '.join(words)[-200:]}")
    return found


def wait_for(condition, seconds=30):
    """The first true value of `condition()`, asked again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.005)
    raise AssertionError("it did not happen in time")


def acknowledged(place):
    """The last step that a run in `place` said was saved; -1 for none."""
    found = [-1]
    for name in ("told", "said"):
        path = Path(place) / name
        if path.exists():
            found += [int(line.split()[1]) for line in _lines(path)]
    return max(found)


def updates(place):
    """Updates that runs in `place` did, in the order of doing."""
    path = Path(place) / "said"
    return [int(line.split()[0]) for line in _lines(path)] if path.exists() else []


def forget_updates(place):
    """Begin a new list of updates; the losses of the old one stay known."""
    path = Path(place) / "said"
    if path.exists():
        with (Path(place) / "told").open("a") as told:
            told.writelines(f"{line}\n" for line in _lines(path))
        path.unlink()


def losses(place):
    """Update -> its loss to the last bit, of the last time it was done."""
    found = {}
    for name in ("told", "said"):
        path = Path(place) / name
        for line in _lines(path) if path.exists() else []:
            step, _, loss = line.split()
            found[int(step)] = loss
    return found


def _lines(path):
    """Whole lines: a run may have been killed inside a write."""
    return [line for line in path.read_text().split("\n")[:-1] if line.count(" ") == 2]


def published(root):
    """Steps whose checkpoint is there; each must be whole.

    Raises:
        CheckpointError: one of them is damaged.
    """
    found = list_checkpoints(root)
    for info in found:
        verify_checkpoint(info.path)
    return [info.step for info in found]


def whole(root):
    """Checkpoints that verify; others may lie beside them."""
    found = []
    for info in list_checkpoints(root):
        try:
            verify_checkpoint(info.path)
            found.append(info.path)
        except CheckpointError:
            continue
    return found


def leftovers(root):
    """Names that a killed write or deletion left."""
    root = Path(root)
    entries = os.listdir(root) if root.is_dir() else []
    return [name for name in entries if parse_leftover(name)]


def fingerprint(checkpoint):
    """What must be equal, to the last bit, in two checkpoints of the same state."""
    manifest = verify_checkpoint(checkpoint)
    found = {f.name: f.sha256 for f in manifest.files if f.part != "trainer"}
    trainer = json.loads((Path(checkpoint) / "trainer.json").read_text())
    return {**found, "position": trainer["position"], "seed": trainer["seed"]}


def newest(root):
    """The checkpoint with the highest number, whole or not."""
    names = [path for path in Path(root).iterdir() if path.name.startswith("step-")]
    return max(names, key=lambda path: int(path.name[5:]))
