"""Which submodules make graphs again, and whether their inputs or they are to blame."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader

from habana_frameworks._emulation.lazy import mark_step
from habana_frameworks._emulation.recorder import RECORDER


@dataclass
class _Seen:
    """Of one submodule: signatures so far, calls, recompilations by their cause."""

    inputs: set[Any] = field(default_factory=set)
    outputs: set[Any] = field(default_factory=set)
    calls: int = 0
    by_input: int = 0
    by_itself: int = 0


def shapes_of(value: Any) -> Any:
    """The shapes in nested lists, tuples and dicts; anything else stands for itself."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    if isinstance(value, (list, tuple)):
        return tuple([shapes_of(item) for item in value])
    if isinstance(value, dict):
        return tuple([(key, shapes_of(item)) for key, item in value.items()])
    return value if isinstance(value, (int, float, str, type(None))) else type(value)


def detect_recompilation_auto_model(
    model: nn.Module, mdlname: str = "Net", waittime: float = 1, csv_out: str = "out"
) -> Any:
    """`model` itself, each call of a submodule between two step markers from now on.

    It gets `raw_logs()`, a line for each call, and `analyse_dynamicity()`, which prints
    the submodules that compiled again and writes them to `csv_out`_1.csv (for inputs
    seen before: the submodule is dynamic) and `csv_out`_2.csv (for new inputs).
    `waittime` is for devices that compile meanwhile, and not waited here.
    AssertionError in a distributed run.
    """
    logs: list[str] = []
    seen: dict[str, _Seen] = {}
    names = {}
    for path, module in model.named_modules():  # a shared one has its first name
        names[module] = f"{mdlname}/{path.replace('.', '/')}" if path else mdlname
    inner: list[int] = []  # graphs of the calls below, for each call under way
    for module, name in names.items():
        seen[name] = _Seen()
        forward = _watched(module.forward, name, seen[name], logs, inner)
        module.forward = MethodType(forward, module)
    watched: Any = model
    watched.raw_logs = lambda: logs
    watched.analyse_dynamicity = lambda: _analyse(seen, csv_out)
    return watched


def _watched(
    original: Callable[..., Any],
    name: str,
    seen: _Seen,
    logs: list[str],
    inner: list[int],
) -> Callable[..., Any]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        _refuse_distributed()
        mark_step()
        before = RECORDER.totals["compilation"]
        inner.append(0)
        result = original(*args, **kwargs)
        mark_step()
        compiled = RECORDER.totals["compilation"] - before
        own = compiled - inner.pop()
        if inner:
            inner[-1] += compiled
        new = []
        for what, known, value in (
            ("input", seen.inputs, (args, kwargs)),
            ("output", seen.outputs, result),
        ):
            signature = shapes_of(value)
            if signature not in known:
                known.add(signature)
                new.append(what)
        if own and seen.calls:
            if "input" in new:
                seen.by_input += own
            else:
                seen.by_itself += own
        signs = f", new {' and '.join(new)} signature" if new else ""
        again = ", recompilation" if own and seen.calls else ""
        logs.append(f"[{name}] call {seen.calls}: {own} graphs{signs}{again}")
        seen.calls += 1
        return result

    return forward


def _analyse(seen: dict[str, _Seen], csv_out: str) -> None:
    tables = {
        "recompiled for inputs seen before (dynamic submodules)": "by_itself",
        "recompiled for new inputs": "by_input",
    }
    for number, (title, cause) in enumerate(tables.items(), 1):
        rows = [(name, getattr(s, cause)) for name, s in seen.items()]
        rows = sorted([r for r in rows if r[1]], key=lambda row: -row[1])
        _print([f"{title}: {len(rows)}", *(f"  {n:>6} x  {name}" for name, n in rows)])
        path = Path(f"{csv_out}_{number}.csv")
        with path.open("w", newline="", encoding="utf-8") as out:
            csv.writer(out).writerows([("Module name", "Count"), *rows])


def data_dynamicity(dl: Iterable[Any]) -> dict[Any, int]:
    """How often each combination of shapes comes from the loader; printed as well."""
    _refuse_distributed()
    found = Counter(shapes_of(batch) for batch in dl)
    rows = [f"  {count:>6} x  {shapes}" for shapes, count in found.most_common()]
    _print([*rows, f"Number of unique shapes:  {len(found)}"])
    return dict(found)


def const_shape_dataloader(dl: Iterable[Any], maxlen: int) -> DataLoader[Any]:
    """A loader of at most `maxlen` batches of `dl`, all of one shape.

    The shape that comes `maxlen` times first, or else the most frequent one.
    ValueError if `dl` is empty.
    """
    by_shape: dict[Any, list[Any]] = {}
    for batch in dl:
        same = by_shape.setdefault(shapes_of(batch), [])
        same.append(batch)
        if len(same) == maxlen:
            return _loader(same)
    if not by_shape:
        raise ValueError("the data loader has no batches")
    return _loader(max(by_shape.values(), key=len))


def _loader(batches: list[Any]) -> DataLoader[Any]:
    kept: Any = batches
    return DataLoader(kept, batch_size=None, collate_fn=_same)


def _same(batch: Any) -> Any:
    return batch


def _refuse_distributed() -> None:
    if dist.is_available() and dist.is_initialized():
        raise AssertionError("recompilations are looked for in one process only")


def _print(lines: Iterable[str]) -> None:
    print("\n".join(lines))
