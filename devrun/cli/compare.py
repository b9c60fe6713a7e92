"""`devrun compare`: where two devices, precisions or configs part."""

from __future__ import annotations

import argparse
import json
from typing import Any

from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.cli.flags import add_trust_flags, import_modules, trusted
from devrun.config import Config, check_config
from devrun.config.options import DictAction
from devrun.devices.resolve import FACTS
from devrun.errors import ConfigError

PARTED = 10
"""Exit status of trainings that part."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("configs", nargs="+", metavar="CONFIG", help="one training, or two")
    add("--devices", metavar="A,B", help="compare these devices, such as cpu,hpu")
    add("--device", help="for both, where two others are compared (auto)")
    add("--precisions", metavar="P,Q", help="compare these, such as fp32,bf16")
    add("--steps", type=int, default=5, help="updates (5)")
    add("--emulate", action="store_true", help="hpu and ipu by their emulators")
    add("--seed", type=int, help="of both (that of the config, or 0)")
    add("--cfg-options", nargs="+", action=DictAction, help="changes of the configs")
    add("--json", action="store_true", help="the result as JSON")
    add_trust_flags(parser)


def run(args: argparse.Namespace, session: Session) -> int:
    """0 where they agree, 10 where they part."""
    if args.steps < 1:
        raise ConfigError(f"--steps must be 1 or more, got {args.steps}")
    if len(args.configs) > 2:
        raise ConfigError(f"two configs can be compared, got {len(args.configs)}")
    devices = _pair("devices", args.devices)
    if args.device is not None:
        if args.devices is not None:
            raise ConfigError("--device and --devices clash; give one of them")
        devices = args.device, args.device
    precisions = _pair("precisions", args.precisions)
    one, two = (_side(args, i, devices, precisions) for i in range(2))
    pairs = (devices, precisions) if args.devices else (precisions,)
    labels = [_label(args, i, *pairs) for i in range(2)]
    if labels[0] == labels[1]:
        raise ConfigError(
            "nothing to compare: give two CONFIGs, --devices A,B or --precisions P,Q"
        )
    with trusted(args):
        for config, cfg in zip(args.configs, (one, two), strict=False):
            import_modules(argparse.Namespace(**{**vars(args), "config": config}), cfg)
        from devrun.log.logger import get_logger
        from devrun.rehearsal.compare import compare
        from devrun.rehearsal.report import plain

        get_logger("devrun", log_level="ERROR")  # five trainings would say much
        found = compare(one, two, (labels[0], labels[1]), steps=args.steps)
    say(json.dumps(plain(found.as_dict()), indent=2) if args.json else _words(found))
    return PARTED if found.parting else 0


def _pair(flag: str, text: str | None) -> tuple[str | None, str | None]:
    if text is None:
        return None, None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise ConfigError(f"--{flag} takes two with a comma between, got {text!r}")
    return parts[0], parts[1]


def _side(
    args: argparse.Namespace,
    index: int,
    devices: tuple[str | None, str | None],
    precisions: tuple[str | None, str | None],
) -> Any:
    cfg: Any = Config.fromfile(
        args.configs[min(index, len(args.configs) - 1)],
        import_custom_modules=False,
        trust=args.trust_config,
    )
    cfg.merge_from_dict(args.cfg_options or {})
    changes: dict[str, Any] = {"resume_from": None}
    if args.seed is not None or cfg.get("seed") is None:
        changes["seed"] = args.seed or 0
    if devices[index] is not None:
        changes["device"] = _device(str(devices[index]), args.emulate)
    if precisions[index] is not None:
        changes["optimizer_config.precision"] = precisions[index]
    cfg.merge_from_dict(changes)
    check_config(cfg)
    return cfg


def _device(name: str, emulate: bool) -> Any:
    facts = FACTS.get(name)
    if not (emulate and facts is not None and facts.has_emulator):
        return name
    return {"type": name, "emulate": True, "_delete_": True}


def _label(args: argparse.Namespace, index: int, *pairs: tuple[str | None, ...]) -> str:
    parts = [pair[index] for pair in pairs if pair[index] is not None]
    if len(args.configs) == 2:
        parts.insert(0, args.configs[index])
    return " ".join(map(str, parts))


def _words(found: Any) -> str:
    kinds = ", ".join(f"{kind}s" if kind != "loss" else kind for kind in found.kinds)
    what = f"{found.steps} updates, {found.records} records: {kinds}"
    lines = [f"{found.first} and {found.second}: {what}"]
    if found.missing:
        lines.append(f"only in one of them: {'; '.join(found.missing)}")
    part = found.parting
    if part is None:
        share = f"{found.closest:.0%} of what rounding may cause, at most"
        return "\n".join([*lines, f"they agree: {share}"])
    lines.append(f"they part at update {part.step}: {part.kind} of {part.name}")
    lines.append(
        f"  difference {part.difference:.3g} of its norm, rounding explains "
        f"{part.tolerance:.3g}; {part.ulps:.3g} ulps in the median, "
        f"{part.worst:.3g} of the largest value at most"
    )
    lines.append(f"  usual cause: {part.cause}")
    return "\n".join(lines)
