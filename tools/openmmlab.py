#!/usr/bin/env python3
"""Every config of MMClassification 0.25, unmodified, on devrun: `make openmmlab`.

Data of each set's own layout is made up in a folder where the paths of the configs lead
to. A config then builds its model (`build`), or does one update and one evaluation
through the command line on a device (`cpu`, `ipu` and `hpu` on their emulators), with a
batch of 2 and images of 64 x 64; where a model refuses them, of their own size.

Many configs differ in a schedule or in data only. One is not run itself where another
that amounts to the same was, or where each of its sections (model, data, optimizer,
schedule, hooks) took part in a good run on that device; its line says so (`by`).

Each outcome is a line of a JSON-lines file, which a second start goes on with;
`--table` puts them into benchmarks/OPENMMLAB.md.

A file under `_base_` is a part of a config: what it lacks comes from the bases of
ResNet-18 on ImageNet; for VOC, whose images have several labels, with a head for them.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openmmlab_changes import SIZES, changes
from openmmlab_data import make_data, take_made_up_files
from openmmlab_table import DEVICES, STAGES, insert, parity_table, plain, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

FILL = ("models/resnet18", "datasets/imagenet_bs32", "schedules/imagenet_bs256")
SEVERAL_LABELS = """model = dict(head=dict(
    _delete_=True, type='MultiLabelLinearClsHead', num_classes=20, in_channels=512))
"""
"""What VOC needs beside them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", default="build/openmmlab.jsonl")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument(
        "--only", nargs="+", default=[""], help="parts of paths, taken in this order"
    )
    parser.add_argument("--limit", type=float, default=300, help="seconds a config")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="in all")
    parser.add_argument("--table", action="store_true", help="only write the tables")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    results = Path(args.results).absolute()
    if args.worker:
        work(args.worker, results)
        return 0
    configs = find_configs()
    if args.table:
        insert("survey", table(configs, read(results)))
        parity = results.with_name("openmmlab-parity.jsonl")
        if parity.exists():
            insert("parity", parity_table(parity))
        return 0
    results.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        for stage in args.stages:
            names = smallest_first(configs, read(results))
            order = [n for part in args.only for n in names if part in n]
            wanted = list(dict.fromkeys(order))
            survey(stage, wanted, results, folder, args.limit, end)
    return 0


def find_configs() -> dict[str, Path]:
    """Name -> file, of the installed package."""
    import importlib.util

    spec = importlib.util.find_spec("mmcls")
    if spec is None or spec.origin is None:
        sys.exit("mmcls is not installed: make openmmlab installs it")
    root = Path(spec.origin).parent / ".mim" / "configs"
    files = sorted(root.rglob("*.py"))
    return {file.relative_to(root).as_posix(): file for file in files}


def smallest_first(
    configs: dict[str, Path], known: dict[tuple[str, str], dict[str, Any]]
) -> list[str]:
    """By the seconds that one took on any device; those that were not run last."""

    def place(name: str) -> tuple[float, str]:
        lines = [known[at, name] for at in STAGES if (at, name) in known]
        own = [line["seconds"] for line in lines if "by" not in line]
        return min(own, default=float("inf")), name

    return sorted(configs, key=place)


def read(results: Path) -> dict[tuple[str, str], dict[str, Any]]:
    if not results.exists():
        return {}
    lines = map(json.loads, results.read_text("utf-8").splitlines())
    return {(line["stage"], line["config"]): line for line in lines}


def survey(
    stage: str, names: list[str], results: Path, folder: str, limit: float, end: float
) -> None:
    """Run what has no outcome yet; a process that hangs or dies costs one config."""
    while time.monotonic() < end:
        done = read(results)
        left = [name for name in names if (stage, name) not in done]
        if not left:
            return
        todo = Path(folder, "todo")
        todo.write_text("\n".join(left), "utf-8")
        command = [sys.executable, __file__, "--results", str(results)]
        process = subprocess.Popen([*command, "--worker", stage], cwd=folder)
        count, since = len(done), time.monotonic()
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
            now = len(read(results))
            if now != count:
                count, since = now, time.monotonic()
            late = time.monotonic() - since > limit
            if late or time.monotonic() > end:
                process.kill()
                process.wait()
                if late:
                    break
                return
        done = read(results)
        first = next((name for name in left if (stage, name) not in done), None)
        if first is not None:
            reason = f"ended with {process.returncode}, or after {limit:.0f} s"
            write(results, stage, first, limit, {"good": False, "reason": reason})


def write(
    results: Path, stage: str, name: str, seconds: float, found: dict[str, Any]
) -> None:
    line = {"stage": stage, "config": name, **found, "seconds": round(seconds, 1)}
    line["commit"] = commit()
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


@functools.cache
def commit() -> str:
    """The one that is checked out where this file is."""
    from devrun.cli.record import git_revision

    return (git_revision(Path(__file__).parent) or "")[:7]


def work(stage: str, results: Path) -> None:
    """The configs in the file `todo` of this folder, one after the other."""
    provide_operators()
    take_made_up_files()
    configs = find_configs()
    runs = [line for (at, _), line in read(results).items() if at == stage]
    ran = Ran()
    for old in runs:
        if "by" not in old and "sections" in old:
            ran.add(old["config"], old["sections"], old["good"], old["reason"])
    names = Path("todo").read_text("utf-8").splitlines()
    for name in in_turn(stage, names, configs, ran, results):
        began = time.monotonic()
        line: dict[str, Any] = {"good": False, "reason": ""}
        try:
            line.update(outcome(stage, name, whole(configs, name), ran))
        except Exception as error:  # noqa: BLE001 - the table says why
            line["reason"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        gc.collect()  # models are full of circles
        write(results, stage, name, time.monotonic() - began, line)


def in_turn(
    stage: str, names: list[str], configs: dict[str, Path], ran: Ran, results: Path
) -> Iterator[str]:
    """Those to be run, after what others have shown already."""
    left = []
    for name in names:
        began = time.monotonic()
        try:
            size = SIZES[stage == "build"]
            sections = changes(whole(configs, name), size)[0]
            known = ran.covers(sections)
        except Exception:  # noqa: BLE001 - its turn comes
            known = None
        if known is not None and known["good"]:
            line = {**known, "sections": sections}
            write(results, stage, name, time.monotonic() - began, line)
        else:
            left.append(name)
    yield from left


class Ran:
    """What was run on a device so far."""

    def __init__(self) -> None:
        self.whole: dict[tuple[str, ...], tuple[str, bool, str]] = {}
        self.parts: set[str] = set()

    def add(self, name: str, sections: list[str], good: bool, reason: str) -> None:
        self.whole.setdefault(tuple(sections), (name, good, reason))
        if good:
            self.parts.update(sections)

    def covers(self, sections: list[str]) -> dict[str, Any] | None:
        """The outcome for a config of these sections, where it is known."""
        if tuple(sections) in self.whole:
            name, good, reason = self.whole[tuple(sections)]
            return {"good": good, "reason": reason, "by": f"as {name}"}
        if self.parts.issuperset(sections):
            return {"good": True, "reason": "", "by": "sections"}
        return None


def outcome(stage: str, name: str, file: Path, ran: Ran) -> dict[str, Any]:
    """`good`, `reason` and what it was found by, for a line of the results."""
    for size in SIZES[stage == "build" :]:
        sections, options = changes(file, size)
        known = ran.covers(sections)
        if known is not None and (known["good"] or size is None):
            return {**known, "sections": sections}
        if known is None:
            run = build if stage == "build" else train
            good, reason = run(stage, file, options)
            ran.add(name, sections, good, reason)
        else:
            good, reason = False, known["reason"]
        if good or changes(file, None)[0] == sections:
            break
    found = {"good": good, "reason": reason, "sections": sections}
    return {**found, "size": size}


def provide_operators() -> None:
    """torchvision registers functions for operators that a CPU build may lack."""
    import torch

    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou) -> Tensor")
        provide_operators.__dict__["kept"] = library


def whole(configs: dict[str, Path], name: str) -> Path:
    """The file, or one that completes it."""
    if not name.startswith("_base_"):
        return configs[name]
    kind = name.split("/")[1]
    bases = [n for n in FILL if not n.startswith(kind)] if "/" in name[7:] else FILL
    files = [configs[f"_base_/{n}.py"] for n in bases] + [configs[name]]
    if name != "_base_/default_runtime.py":
        files.append(configs["_base_/default_runtime.py"])
    if kind == "datasets" and "pipelines" in name:
        files.append(configs["_base_/datasets/imagenet_bs32.py"])
    made = Path("made.py")
    text = f"_base_ = {[str(file) for file in dict.fromkeys(files)]}\n"
    made.write_text(text + (SEVERAL_LABELS if "voc" in name else ""))
    return made.absolute()


def build(_: str, file: Path, options: dict[str, Any]) -> tuple[bool, str]:
    """Model with first weights, data sets, loaders, optimizer, hooks, evaluation."""
    from devrun.config import Config, check_config
    from devrun.runners.training import build_training

    cfg: Any = Config.fromfile(file, import_custom_modules=False)
    cfg.merge_from_dict({**options, "device": "cpu", "seed": 0})
    check_config(cfg)
    build_training(cfg, progress=False).runner.close()
    return True, ""


def train(device: str, file: Path, options: dict[str, Any]) -> tuple[bool, str]:
    """Status and last line of `devrun train`."""
    from devrun.cli.main import main as devrun

    command = ["train", str(file), *DEVICES[device], "--overwrite", "--no-progress"]
    options = {k: v for k, v in options.items() if k != "work_dir"}
    command += ["--seed", "0", "--work-dir", "work", "--cfg-options"]
    command += [f"{key}={plain(value)!r}" for key, value in options.items()]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        status = devrun(command)
    if status in (130, 143):  # interrupted: no outcome, a second start tries it again
        raise SystemExit(status)
    lines = said.getvalue().strip().splitlines()
    evaluated = "(val)" in said.getvalue()
    if status == 0 and evaluated:
        return True, ""
    reason = next((x for x in reversed(lines) if "devrun: error" in x), lines[-1])
    return False, reason[:300] if status else "not evaluated"


if __name__ == "__main__":
    sys.exit(main())
