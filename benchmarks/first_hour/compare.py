"""How much one writes, and waits, for the same training: devrun, Lightning, MMEngine.

The same data, model, optimizer, schedule, evaluation, best checkpoint and log, for five
epochs on the CPU; lines that are neither blank nor comments nor docstrings are counted.
What is not importable is left out. Seconds are of the whole command, the median of
three in turns; the machine should be quiet.

    python benchmarks/first_hour/compare.py
"""

from __future__ import annotations

import ast
import importlib.util
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
OURS = ("my_data.py", "my_model.py", "config.yaml")


def lines_of(path: Path) -> int:
    """Lines of code, or of a config."""
    lines = path.read_text().splitlines()
    doc: set[int] = set()
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                first = node.body[0]
                if ast.get_docstring(node) is not None:
                    doc |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    return sum(
        bool(line.strip()) and line.strip()[0] != "#" and number not in doc
        for number, line in enumerate(lines, 1)
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        project = Path(place) / "mine"
        devrun = [sys.executable, "-m", "devrun"]
        subprocess.run([*devrun, "new", project], check=True, capture_output=True)
        words = ["--import", "my_data", "--import", "my_model", "--overwrite"]
        ways = {"devrun": [*devrun, "train", "config.yaml", *words]}
        lines = {"devrun": sum(lines_of(project / name) for name in OURS)}
        for name in ("lightning", "mmengine"):
            script = HERE / f"{name}_digits.py"
            lines[name] = lines_of(script)
            if importlib.util.find_spec(name) is not None:
                ways[name] = [sys.executable, str(script)]
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        found = {}
        for _ in range(3):
            for name, command in ways.items():
                began = time.perf_counter()
                done = subprocess.run(
                    command, cwd=project, capture_output=True, text=True, check=True
                )
                seconds[name].append(time.perf_counter() - began)
                said = re.findall(r"accuracy:? +([\d.]+)", done.stdout + done.stderr)
                found[name] = said[-1]
    sys.stdout.write("| | lines | seconds | accuracy |\n|---|---|---|---|\n")
    for name, count in lines.items():
        took = f"{statistics.median(seconds[name]):.1f}" if name in ways else "not here"
        sys.stdout.write(f"| {name} | {count} | {took} | {found.get(name, '')} |\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
