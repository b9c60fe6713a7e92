"""What five people do in their first hour, and what it takes them.

    python tests/first_hour/roles.py

prints commands (in a notebook: cells), lines and seconds with devrun, Lightning and
MMEngine. Lines are those that somebody writes, without blanks, comments and docstrings;
of a port, those that the script did not have. devrun is the built wheel in a new
environment; what is not importable here is left out. Seconds are of the whole commands,
once; the machine should be quiet.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.first_hour.terminal import ROOT, Terminal, environment
from tests.support.strict import zip_strict

PEERS = Path(__file__).with_name("peers")
PORTING = ROOT / "examples" / "porting"


def code_of(path):
    """The lines of a program or a config that do something."""
    lines = path.read_text().splitlines()
    doc: set[int] = set()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                first = node.body[0]
                if ast.get_docstring(node) is not None:
                    doc |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    return [
        line
        for number, line in enumerate(lines, 1)
        if line.strip() and line.strip()[0] != "#" and number not in doc
    ]


def written(*paths, beside=None):
    """Lines of code in all of them; only those that are not in `beside`."""
    have = Counter(code_of(beside)) if beside else Counter()
    lines = Counter(line for path in paths for line in code_of(path))
    return (lines - have).total()


def cifar(folder):
    """CIFAR-10's binary files with 16 noisy images each, brighter by their class."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        labels = random.integers(0, 10, (16, 1))
        pixels = random.integers(0, 128, (16, 3072)) + 12 * labels
        records = np.concatenate([labels, pixels], 1).astype(np.uint8)
        records.tofile(folder / f"{name}.bin")
    return folder


def cells_run(terminal, program):
    """What each cell of a notebook gave; cells are parted by `# %%`."""
    sources = [part.strip() for part in program.read_text().split("# %%")[1:]]
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    book = {
        "cells": [
            {**cell, "id": str(number), "source": source}
            for number, source in enumerate(sources)
        ],
        "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
    }  # fmt: skip
    (terminal.folder / "book.ipynb").write_text(json.dumps(book))
    convert = ("-m", "nbconvert", "--to", "notebook", "--execute", "--inplace")
    terminal("python", *convert, "book.ipynb")
    terminal.commands += len(sources) - 1
    done = json.loads((terminal.folder / "book.ipynb").read_text())
    return [cell["outputs"] for cell in done["cells"]]


def html_of(outputs):
    return "".join("".join(one.get("data", {}).get("text/html", "")) for one in outputs)


def researcher(terminal):
    """Trains an own model on own data."""
    terminal("devrun", "new", "mine")
    own = ("--import", "my_data", "--import", "my_model")
    shown = terminal("devrun", "train", "config.yaml", *own, cwd="mine")
    assert "best: accuracy 0.9" in shown
    mine = terminal.folder / "mine"
    return written(*(mine / f for f in ("my_data.py", "my_model.py", "config.yaml")))


def experimenter(terminal):
    """Sweeps a learning rate and sorts what came of it."""
    config = "digits/resnet8_digits.yaml"
    rates = ("--sweep", "optimizer.lr=0.1,0.01", "--work-dir", "sweep")
    quick = ("--cfg-options", "runner.max_epochs=1", "--limit-train", "4")
    terminal("devrun", "train", config, *rates, *quick)
    runs = [f"sweep/lr={rate}" for rate in ("0.1", "0.01")]
    order = ("--table", "--sort", "accuracy", "--keys", "optimizer.lr")
    table = terminal("devrun", "report", *runs, *order).splitlines()
    assert len(table) == 3
    assert "optimizer.lr" in table[0]
    return 0


def notebook_user(terminal):
    """Trains in a notebook, and looks at the curve and the accuracy."""
    program = PEERS / "devrun_notebook.py"
    outputs = cells_run(terminal, program)
    bar = "".join("".join(one.get("text", "")) for one in outputs[1])
    assert re.search(r"\repoch 2/2: 100%.*16/16", bar)
    assert "<polyline" in html_of(outputs[2])
    assert "<td>16</td>" in html_of(outputs[2])
    return written(program)


def porter(terminal):
    """Takes a script for one GPU to the CPU and to two emulated devices."""
    data = cifar(terminal.folder / "cifar")
    script = PORTING / "cifar_script.py"
    quick = ("--epochs", 1, "--batch-size", 16)
    shown = terminal(
        "devrun", "check", "--device", "hpu", script, data, *quick, status=11
    )
    (line,) = (
        number
        for number, text in enumerate(script.read_text().splitlines(), 1)
        if text.startswith("    device = ")
    )
    assert f"cifar_script.py:{line}" in shown
    assert "docs/porting.md: step 2" in shown
    keys = [f"data.{part}.data_prefix={data}" for part in ("train", "val")]
    keys += [
        "data.samples_per_gpu=16",
        "runner.max_epochs=1",
        "lr_config.warmup_iters=3",
    ]
    for device in (("cpu",), ("hpu", "--emulate"), ("ipu", "--emulate")):
        words = ("--import", PORTING / "cifar_vit.py", "--work-dir", device[0])
        config = PORTING / "cifar_vit.yaml"
        shown = terminal(
            "devrun",
            "train",
            config,
            *words,
            "--device",
            *device,
            "--cfg-options",
            *keys,
        )
        assert "best: accuracy" in shown
    parts = (PORTING / "cifar_vit.py", PORTING / "cifar_vit.yaml")
    return written(*parts, beside=script)


def vendor(terminal):
    """Makes a device known, tests its adapter and trains on it."""
    terminal("devrun", "new", "board", "--like", "device")
    quiet = ("-q", "--no-deps", "--no-build-isolation", "--no-index")
    pip = (Path(sys.executable), "-m", "pip", "--python", terminal.programs / "python")
    terminal(*pip, "install", *quiet, "./board")
    held = terminal("devrun", "devices", "--conformance", "cores", cwd="board")
    assert "FAILS 0" in held
    quick = ("--cfg-options", "runner.max_epochs=1", "--limit-train", "4")
    config = "digits/resnet8_digits.yaml"
    shown = terminal("devrun", "train", config, "--device", "cores", *quick)
    assert "best: accuracy" in shown
    board = terminal.folder / "board"
    modules = sorted((board / "devrun_cores").glob("*.py"))
    return written(*modules, board / "test_conformance.py", board / "pyproject.toml")


ROLES = (researcher, experimenter, notebook_user, porter, vendor)


def researcher_of(name, terminal):
    script = PEERS / f"{name}_digits.py"
    shown = terminal("python", script)
    assert re.findall(r"accuracy:? +(0\.9\d+)", shown)
    return written(script)


def experimenter_of(name, terminal):
    script = PEERS / f"{name}_sweep.py"
    assert "lr 0.01 accuracy" in terminal("python", script)
    return written(script)


def notebook_user_of(name, terminal):
    program = PEERS / f"{name}_notebook.py"
    outputs = cells_run(terminal, program)
    assert any("image/png" in one.get("data", {}) for one in outputs[2])
    assert "accuracy" in html_of(outputs[3])
    return written(program)


def porter_of(name, terminal):
    data = cifar(terminal.folder / "cifar")
    script = PEERS / f"{name}_port.py"
    quick = ("--epochs", 1, "--batch-size", 16, "--warmup", 3)
    assert "accuracy" in terminal("python", script, data, *quick)
    return written(script, beside=PORTING / "cifar_script.py")


def vendor_of(name, terminal):
    script = PEERS / f"{name}_device.py"
    if not script.exists():  # MMEngine's devices are a list inside of it
        return None
    assert "trained on cores" in terminal("python", script)
    return written(script)


OTHERS = (researcher_of, experimenter_of, notebook_user_of, porter_of, vendor_of)


def main():
    names = ["devrun", *filter(importlib.util.find_spec, ("lightning", "mmengine"))]
    sys.stdout.write(f"| | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n")
    with tempfile.TemporaryDirectory() as folder:
        programs = environment(Path(folder))
        for role, other in zip_strict(ROLES, OTHERS):
            if role is notebook_user and not importlib.util.find_spec("nbconvert"):
                continue
            cells = []
            for name in names:
                terminal = Terminal(programs, Path(folder, name, role.__name__))
                ours = name == "devrun"
                lines = role(terminal) if ours else other(name, terminal)
                took = f"{terminal.commands}, {lines}, {terminal.seconds:.0f} s"
                cells.append("none" if lines is None else took)
            sys.stdout.write(f"| {role.__name__} | {' | '.join(cells)} |\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
