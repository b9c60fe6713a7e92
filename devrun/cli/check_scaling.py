"""`devrun check --devices N`: time and memory of a config on more devices."""

from __future__ import annotations

import argparse
from typing import Any

from devrun.cli.parser import LineParser, at_least
from devrun.errors import ConfigError
from devrun.text import PREFIXES, SECONDS, aligned, quantity, size_text

_SPEEDS = {f"{prefix}flop/s": power for prefix, power in PREFIXES.items()}
_KINDS = (
    *("weights", "gradients", "optimizer_state", "buckets"),
    *("activations", "gathered", "peak"),
)


def add_scaling_flags(parser: LineParser) -> None:
    add = parser.add_argument
    add(
        "--devices",
        type=_count,
        metavar="N",
        help="how many devices: time and memory on 1 to N, by formulas",
    )
    add(
        "--link",
        metavar="NAME|LATENCY,BANDWIDTH",
        help="what joins them: dgx-h100 ... (docs/scaling.md), or 5us,50GB/s",
    )
    add(
        "--compute",
        type=_speed,
        metavar="TIME|FLOP/s",
        help="of one device: 120ms an update, or 400TFLOP/s",
    )


def check_scaling_flags(args: argparse.Namespace, *, program: bool) -> None:
    """Refuse what does not go together.

    Raises:
        ConfigError: a flag of `--devices` without it, or one that it does not take.
    """
    if args.devices is None:
        for flag in ("link", "compute"):
            if getattr(args, flag) is not None:
                raise ConfigError(f"--{flag} is for --devices N; add that")
        for name in args.device or ():
            if name.isdecimal():
                raise ConfigError(
                    f"--device takes a name, got {name}; --devices {name} is how many"
                )
    elif program:
        raise ConfigError(
            f"--devices is for a config, and {args.config} is a program; leave it out"
        )
    elif len(args.device or ()) > 1:
        raise ConfigError("--devices is about one kind of device: give one --device")


def run_scaling(args: argparse.Namespace, cfg: Any, grants: Any) -> Any:
    from devrun.rehearsal.scaling import scaling

    return scaling(
        cfg,
        grants,
        args.devices,
        link=args.link,
        memory=args.memory,
        compute=args.compute,
        device=(args.device or ["auto"])[0],
        timeout=args.timeout,
    )


def scaling_words(found: Any) -> str:
    """Two tables: time by number of devices, memory of a rank by kind."""
    link, times = found.link, f"{found.micro_batches} x " * (found.micro_batches > 1)
    lines = [
        f"each device: {times}{found.samples} samples, {_time(found.compute.seconds)} "
        f"an update, {found.compute.flops / 1e9:.4g} GFLOP ({found.compute.how})",
        f"gradients: {size_text(found.gradients)}; link: {link.name}, {_link(link)}",
        "",
    ]
    strategies = list(dict.fromkeys(p.strategy for p in found.predictions))
    by_place = {(p.devices, p.strategy): p for p in found.predictions}
    heads = ([f"{name} ms", "exposed", "efficiency"] for name in strategies)
    rows = [["devices", *(word for each in heads for word in each)]]
    for count in dict.fromkeys(p.devices for p in found.predictions):
        row = [str(count)]
        for name in strategies:
            row += _cells(by_place.get((count, name)))
        rows.append(row)
    lines += aligned(rows, numbers=True)
    if found.memory:
        kinds = [k for k in _KINDS if any(getattr(m, k) for m in found.memory)]
        fits = found.memory[0].fits is not None
        names = [kind.replace("_", " ") for kind in kinds]
        rows = [[f"MiB of a rank of {found.devices}", *names, *["fits"] * fits]]
        for one in found.memory:
            inner = {"hybrid": one.shard, "tensor": one.tensor}.get(
                one.strategy, found.devices
            )
            mesh = f" {found.devices // inner}x{inner}" * (inner < found.devices > 1)
            sizes = [f"{getattr(one, kind) / 2**20:.4g}" for kind in kinds]
            rows.append(
                [one.strategy + mesh, *sizes, *["yes" if one.fits else "no"] * fits]
            )
        lines += ["", *aligned(rows, numbers=True)]
    lines += [f"{name}: left out: {why}" for name, why in found.left_out.items()]
    return "\n".join([*lines, "", f"do: {found.advice}"])


def _cells(found: Any) -> list[str]:
    if found is None:
        return ["-"] * 3
    exposed = f"{found.exposed / found.seconds:.1%}" if found.seconds else "0.0%"
    return [f"{found.seconds * 1e3:.4g}", exposed, f"{found.efficiency:.1%}"]


def _link(fabric: Any) -> str:
    inside = _rate(fabric.inside)
    if fabric.across is None:
        return inside
    return f"{inside} in boxes of {fabric.box}, {_rate(fabric.across)} across"


def _rate(link: Any) -> str:
    return f"{link.latency * 1e6:.3g} us and {link.bandwidth / 1e9:.4g} GB/s"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms" if seconds < 10 else f"{seconds:.4g} s"


def _count(text: str) -> int:
    return at_least(1, text, hint=" (--device names one)")


def _speed(text: str) -> tuple[float, str]:
    for units, unit in ((SECONDS, "s"), (_SPEEDS, "FLOP/s")):
        value = quantity(text, units)
        if value is not None and 0 < value < float("inf"):
            return value, unit
    raise argparse.ArgumentTypeError(
        f"{text!r} is neither a time such as 120ms nor a speed such as 400TFLOP/s"
    )
