"""One side of `devrun compare`: a config with what the flags make of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from devrun.cli.flags import import_modules, read_config, trusted
from devrun.config import check_config
from devrun.devices.resolve import FACTS


def side_config(
    args: argparse.Namespace,
    config: str,
    device: str | None = None,
    precision: str | None = None,
    seed: int | None = None,
) -> Any:
    """The checked config of one side.

    Args:
        seed: takes the place of that of the config, unless the flags have one.
    """
    named = argparse.Namespace(**{**vars(args), "config": config})
    cfg: Any = read_config(named)
    changes: dict[str, Any] = {"resume_from": None}
    given = args.seed if args.seed is not None else seed
    if given is not None or cfg.get("seed") is None:
        changes["seed"] = given or 0
    if device is not None:
        changes["device"] = _device(device, args.emulate)
    if precision is not None:
        changes["optimizer_config.precision"] = precision
    cfg.merge_from_dict(changes)
    check_config(cfg)
    return cfg


def load_modules(args: argparse.Namespace, config: str, cfg: Any) -> None:
    """What the side's model and data are registered by."""
    import_modules(argparse.Namespace(**{**vars(args), "config": config}), cfg)
    from devrun.log.logger import get_logger

    get_logger("devrun", log_level="ERROR")  # five trainings would say much


@contextmanager
def side(
    args: argparse.Namespace, config: str, label: str, device: str | None
) -> Iterator[Any]:
    """A single side, ready to train within the context."""
    cfg = side_config(args, config, device)
    with trusted(args):
        load_modules(args, config, cfg)
        from devrun.rehearsal.compare import Trained

        yield Trained(cfg, label)


def _device(name: str, emulate: bool) -> Any:
    facts = FACTS.get(name)
    if not (emulate and facts is not None and facts.has_emulator):
        return name
    return {"type": name, "emulate": True, "_delete_": True}
