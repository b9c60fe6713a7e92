"""Real launches of `devrun train --num-devices N`, of tiny runs on the CPU."""

import json
import os
from pathlib import Path

import pytest
import yaml

from tests.support import zygote

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {
    "custom_imports": {"imports": ["tests.faults.parts", "tests.launch.parts"]},
    "model": {"type": "MLP", "in_features": 4, "hidden": [8], "num_classes": 2},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 2,
        "workers_per_gpu": 0,
        "train": {"type": "Numbered", "length": 40},
    },
    "optimizer": {"type": "AdamW", "lr": 0.01},
    "runner": {"type": "IterBasedRunner", "max_iters": 12},
    "checkpoint_config": {"interval": 4, "by_epoch": False, "max_keep_ckpts": 2},
    "log_config": {"interval": 4, "hooks": [{"type": "TextLoggerHook"}]},
    "device": "cpu",
    "seed": 5,
}
PATIENCE = 300


class Place:
    """A folder with a config, and the runs of it."""

    def __init__(self, path):
        self.path, self.work_dir = path, path / "work"

    def write(self, *hooks, name="run.yaml", **changes):
        """The config with changes; hooks have `{place}` for this folder."""
        hooks = json.loads(json.dumps(hooks).replace("{place}", str(self.path)))
        config = {**CONFIG, "custom_hooks": hooks, **changes}
        (self.path / name).write_text(yaml.safe_dump(config))
        return name

    def start(self, *words, program=("-m", "devrun"), env=None, output=None):
        """`devrun train WORDS`, in a session of its own; what it says as text.

        Args:
            output: a file that takes it, in place of pipes.
        """
        given = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        streams = {}
        if output is not None:
            streams = {name: os.dup(output.fileno()) for name in ("stdout", "stderr")}
            streams["stdin"] = os.open(os.devnull, os.O_RDONLY)
        return zygote.start([*program, *words], given, self.path, **streams)

    def run(self, *words, config="run.yaml", **options):
        """(status, stdout, stderr) of a training in two processes, to its end."""
        train = ("train", config, "--work-dir", "work", "--no-progress")
        process = self.start(*train, "--num-devices", 2, *words, **options)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def processes(self):
        """Command lines of living processes that know of this folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words, there = path.read_bytes(), os.readlink(path.parent / "cwd")
            except OSError:  # it ended meanwhile
                continue
            if words and there == str(self.path) and path.parent.name != "self":
                found.append(words.replace(b"\0", b" ").decode())
        return found


def told(err):
    """The lines that the command itself said."""
    return [line for line in err.splitlines() if line.startswith("devrun: ")]


def children(pid):
    """The processes that `pid` has started and that live."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    yield found
    assert found.processes() == []
