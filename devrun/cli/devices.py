"""`devrun devices`: every adapter, what it finds here, or why it finds nothing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

from devrun.cli.console import say
from devrun.cli.exits import Session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="one JSON list, for scripts"
    )


def run(args: argparse.Namespace, session: Session) -> int:
    """List the adapters on stdout; 0 also when only the CPU is here."""
    from devrun.devices.resolve import available_devices  # imports torch

    rows = [_row(entry) for entry in available_devices()]
    say(json.dumps(rows, indent=2) if args.json else _table(rows))
    return 0


def _row(entry: Any) -> dict[str, Any]:
    return {
        "device": entry.name,
        "available": entry.reason is None,
        "reason": entry.reason,
        "devices": [
            {
                "name": device.name,
                "memory_bytes": device.memory_bytes,
                "dtypes": list(device.dtypes),
                "slow_dtypes": list(device.slow_dtypes),
            }
            for device in entry.devices
        ],
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
