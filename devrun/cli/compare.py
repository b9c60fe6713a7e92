"""`devrun compare`: where two devices, precisions, configs or commits part."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from devrun.cli.console import say, say_found
from devrun.cli.exits import Session
from devrun.cli.flags import add_config_flags, read_config, trusted
from devrun.cli.parser import positive, switch
from devrun.config import check_config
from devrun.device_facts import FACTS
from devrun.errors import ConfigError
from devrun.files import user_path

PARTED = 10
"""Exit status of trainings that part."""
STEPS = 5
_PLURALS = {"dropout": "rates of dropout", "batch": "batches", "loss": "losses"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("configs", nargs="+", metavar="CONFIG", help="one training, or two")
    add("--devices", type=_pair, metavar="A,B", help="compare these, such as cpu,hpu")
    add("--device", help="for both, where two others are compared (auto)")
    add("--precisions", type=_pair, metavar="P,Q", help="compare these: fp32,bf16")
    add("--record", metavar="FILE", help="write the one training, for --against")
    add("--against", metavar="FILE", help="of --record, elsewhere or at another commit")
    add("--steps", type=positive, help=f"updates ({STEPS}, or those of FILE)")
    switch(parser, "--emulate", "hpu and ipu by their emulators")
    add("--seed", type=int, help="of both (that of the config, or 0)")
    switch(parser, "--json", "the result as JSON")
    add_config_flags(parser)


def run(args: argparse.Namespace, session: Session) -> int:
    """0 where they agree, 10 where they part."""
    _refuse_mixed(args)
    if args.record:
        return _record(args)
    found = _against(args) if args.against else _both(args)
    say_found(found, args.json, _words)
    return PARTED if found.parting else 0


def _refuse_mixed(args: argparse.Namespace) -> None:
    """Refuse what does not go together: one thing is compared at a time."""
    if len(args.configs) > 2:
        raise ConfigError(f"two configs can be compared, got {len(args.configs)}")
    flags = ("record", "against", "devices", "precisions")
    given = [f"--{flag}" for flag in flags if getattr(args, flag) is not None]
    given += ["a second CONFIG"] * (len(args.configs) - 1)
    if (args.record or args.against) and len(given) > 1:
        raise ConfigError(
            f"{given[0]} and {given[1]} clash: one thing is compared at a time"
        )
    if args.device is not None and args.devices is not None:
        raise ConfigError("--device and --devices clash; give one of them")
    if not given:
        raise ConfigError(
            "nothing to compare: give two CONFIGs, --devices A,B, --precisions P,Q, "
            "or --against FILE"
        )


def _both(args: argparse.Namespace) -> Any:
    """Two devices, precisions or configs, in this process."""
    devices = args.devices or (args.device, args.device)
    precisions = args.precisions or (None, None)
    configs = args.configs[0], args.configs[-1]
    parts = zip(
        configs if len(args.configs) > 1 else (None, None),
        args.devices or (None, None),
        precisions,
    )
    labels = [" ".join(filter(None, each)) for each in parts]
    first, second = zip(configs, devices, precisions)
    with _loaded(args, *first) as one, _loaded(args, *second) as other:
        from devrun.rehearsal.compare import Trained, compare

        _look_for(devices)
        sides = Trained(one, labels[0]), Trained(other, labels[1])
        return compare(*sides, steps=args.steps or STEPS)


def _look_for(devices: tuple[str | None, ...]) -> None:
    """Show torch all devices: it counts them at the first backward pass."""
    from devrun.devices.resolve import adapter_class

    for name in devices:
        if name not in (None, "auto"):
            adapter_class(name.partition(":")[0].lower()).unavailable_reason()


def _record(args: argparse.Namespace) -> int:
    label = f"{args.configs[0]} {args.device or ''}".strip()
    with _loaded(args, args.configs[0], args.device) as cfg:
        from devrun.rehearsal.compare import Trained, write

        trained = Trained(cfg, label)
        found = trained.recorded(args.steps or STEPS)
        trained.measure(found)
        write(found, user_path(args.record))
    say(f"{args.record}: {len(found.records)} records; see --against")
    return 0


def _against(args: argparse.Namespace) -> Any:
    from devrun.rehearsal.compare import Trained, compare, read

    kept = read(user_path(args.against))
    with _loaded(args, args.configs[0], args.device) as cfg:
        return compare(kept, Trained(cfg, "now"), steps=args.steps or kept.steps)


def _pair(text: str) -> tuple[str, str]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not two with a comma between")
    return parts[0], parts[1]


def _words(found: Any) -> str:
    kinds = ", ".join(_PLURALS.get(kind, f"{kind}s") for kind in found.kinds)
    what = f"{found.steps} updates, {found.records} records: {kinds}"
    lines = [f"{found.first} and {found.second}: {what}"]
    part = found.parting
    if part is None:
        lines.append(
            f"they agree: {found.closest:.0%} of what rounding may cause, at most"
        )
        lines.append(f"  a difference of the loss up to {found.unseen:.2g} is rounding")
        return "\n".join(lines)
    who = "they part"
    if part.alone is not None:
        who = f"{part.alone} parts from itself, run twice with one seed,"
    lines.append(
        f"{who} at update {part.step}: {part.kind} of {part.name or 'the model'}"
    )
    if part.places:
        lines.append(f"  code: {' and '.join(part.places)}")
    if part.operator is not None:
        lines.append(f"  first operator: {part.operator}")
    lines.append(
        f"  difference {part.difference:.3g} of its norm, rounding explains "
        f"{part.tolerance:.3g}"
    )
    lines.append(f"  usual cause: {part.cause}")
    return "\n".join(lines)


@contextmanager
def _loaded(
    args: argparse.Namespace,
    config: str,
    device: str | None = None,
    precision: str | None = None,
) -> Iterator[Any]:
    """The checked config of one side; within, what it is made of may be built."""
    named = argparse.Namespace(**{**vars(args), "config": config})
    cfg: Any = read_config(named)
    changes: dict[str, Any] = {}
    if args.seed is not None or cfg.get("seed") is None:
        changes["seed"] = args.seed or 0
    if device is not None:
        changes["device"] = _device(device, args.emulate, cfg.get("device"))
    if precision is not None:
        changes["optimizer_config.precision"] = precision
    cfg.merge_from_dict(changes)
    check_config(cfg)
    with trusted(named, cfg):
        from devrun.log.logger import get_logger

        get_logger("devrun", log_level="ERROR")  # five trainings would say much
        yield cfg


def _device(name: str, emulate: bool, given: Any) -> Any:
    """What makes of the section `given` that of `name`, whose options it keeps."""
    facts = FACTS.get(name)
    emulated = emulate and facts is not None and facts.has_emulator
    section = {"type": name, **({"emulate": True} if emulated else {})}
    if isinstance(given, Mapping) and given.get("type") == name:
        return section
    return {**section, "_delete_": True} if emulated else name
