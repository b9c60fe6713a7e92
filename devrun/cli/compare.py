"""`devrun compare`: where two devices, precisions, configs or commits part."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from devrun.cli.console import say, say_found
from devrun.cli.exits import Session
from devrun.cli.flags import add_config_flags, read_config, trusted
from devrun.cli.parser import switch
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
    add("configs", nargs="*", metavar="CONFIG", help="one training, or two")
    add("--devices", metavar="A,B", help="compare these devices, such as cpu,hpu")
    add("--device", help="for both, where two others are compared (auto)")
    add("--precisions", metavar="P,Q", help="compare these, such as fp32,bf16")
    add("--record", metavar="FILE", help="write the one training, for --against")
    add("--against", metavar="FILE", help="of --record, elsewhere or at another commit")
    add("--steps", type=int, help=f"updates ({STEPS}, or those of FILE)")
    switch(parser, "--emulate", "hpu and ipu by their emulators")
    add("--seed", type=int, help="of both (that of the config, or 0)")
    switch(parser, "--json", "the result as JSON")
    add_config_flags(parser)


def run(args: argparse.Namespace, session: Session) -> int:
    """0 where they agree, 10 where they part."""
    if args.steps is not None and args.steps < 1:
        raise ConfigError(f"--steps must be 1 or more, got {args.steps}")
    if len(args.configs) > 2:
        raise ConfigError(f"two configs can be compared, got {len(args.configs)}")
    chosen = _chosen(args)
    if chosen == "record":
        return _record(args)
    found = _against(args) if chosen else _both(args)
    say_found(found, args.json, _words)
    return PARTED if found.parting else 0


def _chosen(args: argparse.Namespace) -> str:
    """Which of the comparisons is asked for, of which only these go together."""
    two = len(args.configs) == 2
    given = [n for n in ("against", "record") if getattr(args, n)]
    pairs = [n for n in ("devices", "precisions") if getattr(args, n) is not None]
    if not args.configs:
        raise ConfigError("nothing to compare: give the CONFIG to train")
    if not given:
        return ""
    if two or pairs or len(given) > 1:
        others = [
            *(["a second CONFIG"] * two),
            *(f"--{n}" for n in (*given[1:], *pairs)),
        ]
        raise ConfigError(
            f"--{given[0]} and {others[0]} clash: one thing is compared at a time"
        )
    return given[0]


def _both(args: argparse.Namespace) -> Any:
    """Two devices, precisions or configs, in this process."""
    devices = _pair("devices", args.devices)
    if args.device is not None:
        if args.devices is not None:
            raise ConfigError("--device and --devices clash; give one of them")
        devices = args.device, args.device
    precisions = _pair("precisions", args.precisions)
    pairs = (devices, precisions) if args.devices else (precisions,)
    labels = [_label(args, i, *pairs) for i in range(2)]
    if labels[0] == labels[1]:
        raise ConfigError(
            "nothing to compare: give two CONFIGs, --devices A,B, --precisions P,Q, "
            "or --against FILE"
        )
    first, second = zip((args.configs[0], args.configs[-1]), devices, precisions)
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


def _pair(flag: str, text: str | None) -> tuple[Any, Any]:
    if text is None:
        return None, None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise ConfigError(f"--{flag} takes two with a comma between, got {text!r}")
    return parts[0], parts[1]


def _label(args: argparse.Namespace, index: int, *pairs: tuple[str | None, ...]) -> str:
    parts = [pair[index] for pair in pairs if pair[index] is not None]
    if len(args.configs) == 2:
        parts.insert(0, args.configs[index])
    return " ".join(map(str, parts))


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
        f"{part.tolerance:.3g}; {part.worst:.3g} of the largest value at most"
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
