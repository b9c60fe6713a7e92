"""What a training shows where stderr is a terminal."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import zygote
from tests.support.terminals import drawn, terminal

COLUMNS = 72


def on_a_terminal(*words, **environment):
    """Run devrun on a terminal of its own; status and lines as they were drawn."""
    ours, theirs = terminal(COLUMNS)
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    env = {**os.environ, **environment}
    process = zygote.start(["-m", "devrun", *words], env, **streams, finalize=False)
    os.close(theirs)
    return process.wait(60), _lines(ours)


def _lines(screen):
    return [line for line in re.split(r"[\r\n]", drawn(screen)) if line.strip()]


def test_the_first_line_is_there_before_torch_is(config, tmp_path):
    path = config()
    Path("without", "torch").mkdir(parents=True)
    Path("without", "torch", "__init__.py").write_text("raise SystemExit(42)\n")
    ours, theirs = terminal(COLUMNS)
    before = os.environ.get("PYTHONPATH", "")
    env = {**os.environ, "PYTHONPATH": f"{Path('without').absolute()}:{before}"}
    command = [sys.executable, "-m", "devrun", "train", path, "--work-dir", "out"]
    process = subprocess.Popen(command, env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert _lines(ours)[0] == f"devrun: training: {path}; importing PyTorch"
    assert process.wait(60) != 0


@pytest.mark.parametrize("colours", [True, False])
def test_a_terminal_gets_short_lines_and_the_file_whole_ones(config, colours):
    path = config(
        optimizer={"type": "SGD", "lr": 1e30}, optimizer_config={"nonfinite": "warn"}
    )
    status, lines = on_a_terminal(
        "train", path, "--work-dir", "out", NO_COLOR="" if colours else "1"
    )
    assert status == 0, lines
    assert lines[0] == f"devrun: training: {path}; importing PyTorch"
    first = next(at for at, line in enumerate(lines) if "lr: 1.000e+30" in line)
    header = [line for line in lines[:first] if "it/s" not in line]
    assert len(header) <= 12 + 2  # twelve of the header, two of the bar and the folder
    assert any("hooks: FixedLrUpdaterHook, OptimizerHook, " in line for line in header)
    plain = [re.sub(r"\x1b\[\d*[mA]", "", line) for line in lines]
    # a path is one word, and a bar is drawn by tqdm
    logged = plain[: next(i for i, line in enumerate(plain) if line[:5] == "done:")]
    logged = [line for line in logged if "/" not in line]
    assert [line for line in logged if len(line) > COLUMNS] == []
    warned = [line for line in lines if "warning: " in line]
    assert warned
    assert all(line.startswith("\x1b[33m") == colours for line in warned)
    assert plain[-2].startswith(
        "evaluate: devrun test out/config.yaml out/checkpoints/"
    )
    (log,) = Path("out").glob("*.log")
    text = log.read_text()
    assert " - devrun - INFO - hook: " in text
    assert "\x1b" not in text
