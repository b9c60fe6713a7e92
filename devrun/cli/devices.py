"""`devrun devices`: what is here, or why not; what one reaches; whether one is right.

`--bench` measures, and `--conformance` runs the tests of `devrun.testing`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from devrun.cli.console import complain, say
from devrun.cli.exits import Session
from devrun.cli.flags import add_import_flag
from devrun.cli.parser import switch
from devrun.config.imports import import_named
from devrun.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    switch(parser, "--json", "as JSON, for scripts")
    switch(parser, "--bench", "measure a device's speed, and keep it")
    add("--device", help="the one to measure (auto)")
    add("--conformance", metavar="NAME", help="test the adapter of a device")
    switch(parser, "--emulate", "test it on the device's emulator")
    add_import_flag(parser)


def run(args: argparse.Namespace, session: Session) -> int:
    """List the adapters on stdout; 0 also when only the CPU is here."""
    import_named(args.imports, ".")
    if args.bench:
        return _bench(args)
    if args.conformance is not None:
        return _conformance(args.conformance, args.emulate)
    if args.device is not None:
        raise ConfigError("--device is for --bench; add that, or leave it out")
    from devrun.devices.resolve import available_devices  # imports torch

    rows = [_row(entry) for entry in available_devices()]
    say(json.dumps(rows, indent=2) if args.json else _table(rows))
    return 0


def _row(entry: Any) -> dict[str, Any]:
    names = ("name", "memory_bytes", "dtypes", "slow_dtypes")
    return {
        "device": entry.name,
        "available": entry.reason is None,
        "reason": entry.reason,
        "devices": [{n: getattr(each, n) for n in names} for each in entry.devices],
    }


def _table(rows: Iterable[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        if not row["available"]:
            lines.append(f"{row['device']:<13}not here: {row['reason']}")
            continue
        lines.append(f"{row['device']:<13}available")
        lines += [f"  {i:<11}{_device(d)}" for i, d in enumerate(row["devices"])]
    return "\n".join(lines)


def _device(device: dict[str, Any]) -> str:
    memory = device["memory_bytes"]
    size = "memory unknown" if memory is None else f"{memory / 2**30:.1f} GiB"
    dtypes = " ".join(device["dtypes"])
    if device["slow_dtypes"]:
        slow = " and ".join(device["slow_dtypes"])
        dtypes += f" (no instructions for {slow}: many times slower than fp32)"
    return f"{device['name']}, {size}, {dtypes}"


def _conformance(name: str, emulate: bool) -> int:
    """The table of what holds; 11 where something does not."""
    try:
        import pytest
    except ImportError as error:
        raise ConfigError("--conformance needs pytest: pip install pytest") from error
    from devrun.devices.resolve import resolve_device

    resolve_device({"type": name, **({"emulate": True} if emulate else {})})
    words = ["-p", "devrun.testing.plugin", "-p", "no:cacheprovider", "-q"]
    words += ["-c", os.devnull, "--tb=short", "--devrun-device", name]
    return 11 * bool(pytest.main([*words, *["--devrun-emulate"] * emulate]))


def _bench(args: argparse.Namespace) -> int:
    from devrun.devices.resolve import resolve_device
    from devrun.dist import get_dist_info
    from devrun.rehearsal.bench import measure, save

    adapter = resolve_device(args.device or "auto")
    with ExitStack() as undo:
        undo.callback(adapter.teardown)
        adapter.setup(0)
        if get_dist_info()[0] == 0:
            complain(f"{adapter.name} is measured, for half a minute or more", "note")
        peaks = measure(adapter)
        if get_dist_info()[0] == 0:
            kept = save(peaks)
            words = json.dumps(asdict(peaks), indent=2) if args.json else None
            say(words or _rates(peaks, str(kept)))
    return 0


def _rates(peaks: Any, kept: str) -> str:
    """A table: the median, and the quartiles around it."""
    where = f"{peaks.description} ({peaks.device}), {peaks.threads} host threads"
    lines = [f"{where}, torch {peaks.versions['torch']}"]
    for m in peaks.measured:
        spread = f"({m.low:.4g} to {m.high:.4g})"
        rate = f"{m.median:>9.4g} {m.unit:<8}{spread:<24}"
        lines.append(f"{m.kind:<11}{m.dtype:<6}{rate}  {m.shape}")
    lines += [f"not measured: {line}" for line in peaks.left_out]
    return "\n".join([*lines, f"kept for the runs on this device: {kept}"])
