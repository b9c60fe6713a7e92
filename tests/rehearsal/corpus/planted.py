"""Usual mistakes at lines that chance chooses, and what `devrun check` finds of them.

    python -m tests.rehearsal.corpus.planted --seed 1 [--devices cpu,cuda] [NAME ...]

The faults of the corpus stand where its authors put them. Here, a dry run of each
program on the CPU shows which of its statements assign a tensor with a gradient, and
behind up to three of them comes one of `MISTAKES`. What is marked already stays marked
and counts too; so do false alarms.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.rehearsal.corpus import corpus

MISTAKES = {
    "read": ["float({0}.sum())  # fault[cuda,hpu]: host; fault[ipu]: compiled"],
    "print": ["print({0}.mean())  # fault[cuda,hpu]: host; fault[ipu]: compiled"],
    "show": [
        'print(f"{{{0}.detach()}}")  # fault[cuda,hpu]: host; fault[ipu]: compiled'
    ],
    "branch": [
        "if {0}.mean() > -1e9:  # fault[cuda,hpu]: host; fault[ipu]: compiled",
        "    {0} = {0} * 1.0",
    ],
    "mask": [
        "{0} = {0} + 0 * {0}[{0} > -1e9].mean()"
        "  # fault[cuda,hpu]: host; fault[ipu]: compiled"
    ],
    "to host": [
        "{0} = {0} + {0}.detach().cpu().mean().to({0}.device)"
        "  # fault[cuda,hpu]: host; fault[ipu]: compiled"
    ],
    "numpy": [
        "{0} = {0} + float({0}.detach().numpy().mean())"
        "  # fault[cuda]: numpy; fault[hpu]: refused; fault[ipu]: compiled"
    ],
    "on the host": ["{0} = {0} + torch.zeros(1)  # fault[cuda,hpu]: device mismatch"],
    "cuda": [
        '{0} = {0} + torch.zeros(1, device="cuda")'
        "  # fault[cpu,hpu,ipu]: hard-wired cuda"
    ],
    "double": ["{0} = ({0}.double() * 1.0).to({0}.dtype)  # fault[hpu]: float64"],
    "no operator": [
        "{0} = {0} + 0 * torch.erfinv(torch.tanh({0}) * 0.5)  # fault[ipu]: erfinv"
    ],
    "kept": [
        'if not hasattr(self, "kept_here"):',
        "    self.kept_here = []",
        "self.kept_here.append({0})  # fault[cpu,cuda,hpu]: kept graph",
    ],
    "counted": [
        'self.turns_here = getattr(self, "turns_here", 0) + 1'
        "  # fault[cpu,cuda,hpu]: resume",
        "{0} = {0} * (1 + 0.01 * self.turns_here)",
    ],
}
"""Lines behind the assignment of a tensor, with marks as in the corpus."""
AT_MOST = 3
_MARK = re.compile(r"fault\[([\w,]+)\]: ([^;#]+)")
_REMEDY = re.compile(r" *# remedy")


def trace(path):
    """Print, as JSON, each (line, variable) of `path` with a tensor with a gradient."""
    import torch

    from devrun.cli.main import main

    kept, before = {}, {}

    def carries(value):
        with suppress(Exception):  # a tensor of a class of somebody's own
            float_ = isinstance(value, torch.Tensor) and value.is_floating_point()
            several = float_ and value.dim() and value.numel() > 1
            return several and value.requires_grad and torch.is_grad_enabled()
        return False

    def step(frame, event, _):
        if (line := before.get(id(frame))) and event in ("line", "return"):
            for name, value in frame.f_locals.items():
                known = kept.get((line, name), True)
                kept[line, name] = known and bool(carries(value))
        before[id(frame)] = frame.f_lineno if event != "return" else None
        return step

    def begun(frame, *_):
        if Path(frame.f_code.co_filename).name == path.name:
            before[id(frame)] = None
            return step
        return None

    answer = os.dup(1)
    os.dup2(2, 1)  # the program prints too
    sys.path.insert(0, ".")
    sys.settrace(begun)
    words = [f"{path.stem}.yaml", "--import", path.stem, "--device", "cpu"]
    main(["train", *words, "--dry-run"])
    sys.settrace(None)
    rows = [key for key, holds in kept.items() if holds]
    os.write(answer, json.dumps(rows).encode())


def assigned(program):
    """(last line, column, variable, whether it is in a method) of the statements."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        shutil.copytree(corpus.HERE / "base", folder, dirs_exist_ok=True)
        for name, lines in program.files.items():
            Path(folder, name).write_text("\n".join(lines))
        command = [sys.executable, "-m", __spec__.name, "--trace", program.path.name]
        env = {**os.environ, "PYTHONPATH": str(corpus.HERE.parents[2])}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True)
    known = set(map(tuple, json.loads(done.stdout or "[]")))
    for function in ast.walk(ast.parse("\n".join(program.files[program.path.name]))):
        if not isinstance(function, ast.FunctionDef) or function.name == "backward":
            continue
        method = bool(function.args.args) and function.args.args[0].arg == "self"
        for one in ast.walk(function):
            target = getattr(one, "targets", [None])[0]
            if isinstance(one, ast.Assign) and isinstance(target, ast.Name):
                lines = range(one.lineno, one.end_lineno + 1)
                if any((line, target.id) in known for line in lines):
                    yield one.end_lineno, one.col_offset, target.id, method


def planted(program, folder, chance):
    """A copy of `program` in `folder` with mistakes; None where none can stand."""
    rows = sorted(set(assigned(program)))
    chance.shuffle(rows)
    lines = list(program.files[program.path.name])
    if not rows or not any(re.match(r"import torch\b", line) for line in lines):
        return None
    names = chance.sample(sorted(MISTAKES), len(MISTAKES))
    for line, column, variable, method in sorted(rows[:AT_MOST], reverse=True):
        name = next(n for n in names if method or "self." not in "".join(MISTAKES[n]))
        names.remove(name)
        lines[line:line] = [
            " " * column + _marked(text.format(variable), program.devices)
            for text in MISTAKES[name]
        ]
    path = folder / program.path.name
    for name, text in {**program.files, path.name: lines}.items():
        kept = [line for line in text if not _REMEDY.match(line)]
        (folder / name).write_text("\n".join(kept))
    return corpus.Program(path)


def _marked(text, devices):
    """`text` with marks of those `devices` alone on which the program is tried."""

    def less(mark):
        names = [name for name in mark[1].split(",") if name in devices]
        return f"fault[{','.join(names)}]: {mark[2]}" if names else ""

    return _MARK.sub(less, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="faults/NAME or clean/NAME; else all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", default=",".join(corpus.DEVICES))
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.trace:
        trace(args.trace)
        return
    chance = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        every = [one for one in corpus.programs(*args.names) if len(one.files) > 1]
        copies = [planted(one, Path(folder), chance) for one in every]
        found = [one for one in copies if one is not None]
        print(f"{len(found)} programs, seed {args.seed}")
        print(corpus.score(found, args.devices.split(","), at_once=2).table())


if __name__ == "__main__":
    main()
