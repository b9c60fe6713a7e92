"""`devrun check`: what would break, be slow or differ on a device."""

from __future__ import annotations

import argparse
import os
from typing import Any

from devrun.cli.console import say_found
from devrun.cli.exits import Session
from devrun.cli.flags import add_config_flags, read_config
from devrun.cli.parser import LineParser, at_least, switch
from devrun.config import check_config
from devrun.errors import ConfigError
from devrun.probes.kinds import ends_flags, is_program
from devrun.text import aligned, escape, parsed_size

FOUND = 11
"""Exit status where something breaks, or is as bad as `--fail-on` says."""
_KEPT = ("weights", "gradients", "optimizer_state", "buckets")
_KINDS = (*_KEPT, "activations", "gathered", "peak")


def add_arguments(parser: LineParser) -> None:
    parser.usage = f"{parser.prog} [FLAGS] CONFIG | {parser.prog} [FLAGS] SCRIPT [...]"
    parser.ends_at = ends_flags
    add = parser.add_argument
    add("config", metavar="CONFIG", help="what `devrun train` takes; or a program")
    add("--device", action="extend", type=_names, metavar="D", help="such as cpu,hpu")
    add("--steps", type=int, default=3, help="updates of each half of the run (3)")
    add("--samples", type=int, default=8, help="samples of a batch at the most (8)")
    add("--memory", type=_bytes, metavar="SIZE", help="what the device has: 24GiB")
    add("--timeout", type=float, default=600.0, help="seconds for a device (600)")
    kinds = ("breaks", "slow", "differs", "advice")
    mildest = "the mildest finding that gives exit status 11 (breaks)"
    add("--fail-on", choices=kinds, default="breaks", help=mildest)
    switch(parser, "--json", "the result as JSON")
    add("--devices", type=_count, metavar="N", help="what each of N devices takes")
    add_config_flags(parser)


def run(args: argparse.Namespace, session: Session) -> int:
    """0 where nothing is as bad as `--fail-on` says, 11 where something is.

    With `--devices`, 11 where no strategy fits `--memory`.
    """
    _refuse_mixed_flags(args)
    if args.devices is not None:
        forecast = _scaling(args)
        say_found(forecast, args.json, _scaling_words)
        return FOUND if forecast.nothing_fits else 0
    found = _found(args)
    from devrun.rehearsal.check import SEVERITIES

    say_found(found, args.json, _of_program if is_program(args.config) else _words)
    worst = found.worst()
    bad = worst and SEVERITIES.index(worst) <= SEVERITIES.index(args.fail_on)
    return FOUND if bad else 0


def _refuse_mixed_flags(args: argparse.Namespace) -> None:
    """Refuse what does not go together with `--devices`, or is meant as it."""
    names = args.device or ()
    if args.devices is None:
        for name in names:
            if name.isdecimal():
                raise ConfigError(
                    f"--device takes a name, got {name}; --devices {name} is how many"
                )
    elif is_program(args.config):
        raise ConfigError(
            f"--devices is for a config, and {args.config} is a program; leave it out"
        )
    elif len(names) > 1:
        raise ConfigError("--devices is about one kind of device: give one --device")


def _found(args: argparse.Namespace) -> Any:
    from devrun.rehearsal.check import check, check_program

    how = {
        "devices": args.device or (),
        "memory": args.memory,
        "timeout": args.timeout,
    }
    if is_program(args.config):
        return check_program(args.config, args.rest, **how)
    return check(*_config(args), steps=args.steps, samples=args.samples, **how)


def _config(args: argparse.Namespace) -> tuple[Any, Any]:
    """The config, and what it may do."""
    cfg = read_config(args)
    check_config(cfg)
    from devrun.probes.request import Grants

    return cfg, Grants(
        file=args.config,
        factories=tuple(args.factories),
        everything=args.trust_config,
        imports=tuple(args.imports),
        mmcv=args.mmcv,
    )


def _scaling(args: argparse.Namespace) -> Any:
    cfg, grants = _config(args)
    from devrun.rehearsal.scaling import scaling

    return scaling(
        cfg,
        grants,
        args.devices,
        memory=args.memory,
        device=(args.device or [None])[0],
        timeout=args.timeout,
    )


def _names(text: str) -> list[str]:
    return text.split(",")


def _count(text: str) -> int:
    return at_least(1, text, hint=" (--device names one)")


def _bytes(text: str) -> int:
    size = parsed_size(text)
    if not size:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 24GiB")
    return size


def _words(found: Any) -> str:
    lines = _table(found)
    for device in found.devices:
        if device.findings:
            lines += ["", _title(device)]
        for finding in device.findings:
            lines += _finding(finding)
    reduced = dict.fromkeys(r for device in found.devices for r in device.reduced)
    if reduced:
        lines += ["", f"made smaller for the rehearsal: {'; '.join(reduced)}"]
    return "\n".join(lines)


def _of_program(found: Any) -> str:
    """Also where to read how a runner takes the place of such lines."""
    bad = any(device.findings for device in found.devices)
    return _words(found) + bad * (
        "\n\nor leave these lines to a runner, docs/porting.md: step 2 (a config takes "
        "the place of the loops) and step 4 (the device is a flag)"
    )


def _table(found: Any) -> list[str]:
    """A row for each device: how much was found of each severity."""
    from devrun.rehearsal.check import SEVERITIES

    rows = [["device", *SEVERITIES, "tried"]]
    for device in found.devices:
        counts = [str(device.count(severity) or "-") for severity in SEVERITIES]
        ends = "; ".join(
            f"{mode + ': ' if mode else ''}ended in {stage}"
            for mode, stage in device.ended.items()
        )
        cut = any(one.kind == "not to its end" for one in device.findings)
        tried = "the program, a loop cut short" if cut else "the program, to its end"
        if device.updates:
            tried = f"{device.updates} updates, evaluation, save, resume"
        rows.append([_title(device), *counts, ends or tried])
    return aligned(rows)


def _title(device: Any) -> str:
    kind = " (emulated)" if device.emulated else ""
    return f"{device.device}{kind}"


def _finding(finding: Any) -> list[str]:
    often = f", {finding.per_step:g} an update" if finding.per_step else ""
    modes = f" ({', '.join(finding.modes)})" if finding.modes else ""
    lines = [f"  {finding.severity}: {finding.kind}: {finding.what}{often}{modes}"]
    if finding.site:
        lines.append(f"    at {finding.site}")
    lines.append(f"    {finding.why}")
    if finding.remedy != finding.why:
        lines.append(f"    do: {finding.remedy}")
    lines += [f"      {call}" for call in finding.stack]
    here = f"{os.getcwd()}{os.sep}"  # files are shorter as seen from here
    return [escape(line.replace(here, ""), 600) for line in lines]


def _scaling_words(found: Any) -> str:
    """A table: what a rank sends in an update, and has in memory, by strategy."""
    times = f"{found.micro_batches} x " * (found.micro_batches > 1)
    computing = f"computing: {_milliseconds(found.computing)}"
    lines = [f"each device: {times}{found.samples} samples an update, {computing}", ""]
    kinds = [k for k in _KINDS if any(getattr(one, k) for one in found.strategies)]
    fits = any(one.fits is not None for one in found.strategies)
    names = [kind.replace("_", " ") for kind in kinds]
    title = f"MiB of a rank of {found.devices}"
    rows = [[title, *names, *["fits"] * fits, "sent", "sending"]]
    for one in found.strategies:
        sizes = [f"{getattr(one, kind) / 2**20:.4g}" for kind in kinds]
        sent = [f"{one.sent / 2**20:.4g}", _milliseconds(one.sending)]
        verdict = ["yes" if one.fits else "no"] * fits
        rows.append([one.strategy, *sizes, *verdict, *sent])
    lines += aligned(rows, numbers=True)
    lines += [f"{name}: left out: {why}" for name, why in found.left_out.items()]
    if any("not measured" in line for line in lines):
        how = (
            "--device D times updates on a device that is here; sending is measured by"
        )
        lines += ["", f"{how} devrun devices --bench under torchrun"]
    return "\n".join(lines)


def _milliseconds(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1e3:.4g} ms"
