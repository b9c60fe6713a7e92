"""Torch schedulers by name, and from nested dicts to objects."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from devrun import trust
from devrun.blame import cause_of
from devrun.construct import check_call, where
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError, nearest
from devrun.registry import LR_SCHEDULERS

Scheduler = lr_scheduler.LRScheduler
_OURS = {"optimizer", "last_epoch"}
"""Arguments that are not the user's: a resumed run restores the position itself."""


def scheduler_names() -> list[str]:
    """What a torch policy may be called."""
    torch_names = [
        name
        for name, value in vars(lr_scheduler).items()
        if isinstance(value, type)
        and issubclass(value, Scheduler)
        and value is not Scheduler
        and not name.startswith("_")
    ]
    return sorted({*torch_names, *LR_SCHEDULERS.module_dict})


def find_scheduler(name: str) -> type[Scheduler] | None:
    """The class called `name`: registered, torch's own, or at a dotted path."""
    if name in LR_SCHEDULERS:
        return LR_SCHEDULERS.get(name)  # type: ignore[return-value]
    if name in scheduler_names():
        return getattr(lr_scheduler, name)  # type: ignore[no-any-return]
    if "." in name:
        kind = LR_SCHEDULERS.resolve(name)
        if inspect.isclass(kind):
            return kind  # type: ignore[return-value]
        raise ConfigTypeError(f"policy {name!r} must be a class of a scheduler")
    return None


def check_arguments(kind: type[Scheduler], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that `kind` does not take, and dicts that are no schedulers.

    Raises:
        ConfigTypeError: an argument is unknown or missing.
        UnknownNameError: an entry of `schedulers` names no scheduler.
    """
    trust.check_arguments(kind, arguments)
    for key in _OURS & arguments.keys():
        raise ConfigTypeError(
            f"{kind.__name__} takes no argument {key!r} here", key=key
        )
    check_call(kind, {**arguments, **_given(kind, None)}, arguments)
    parts = arguments.get("schedulers", ())
    for at, entry in enumerate(parts):
        try:
            check_arguments(*_part(entry))
        except ConfigError as error:
            error.locate(where(parts, at))
            raise


def build_scheduler(
    kind: type[Scheduler], optimizer: Optimizer, arguments: Mapping[str, Any]
) -> Scheduler:
    """`kind(optimizer, **arguments)`, entries of `schedulers` built first.

    Raises:
        ConfigError: the constructor refused a value.
    """
    options = dict(arguments)
    if "schedulers" in options:
        options["schedulers"] = [
            build_scheduler(part, optimizer, rest)
            for part, rest in map(_part, options["schedulers"])
        ]
    try:
        return kind(**options, **_given(kind, optimizer))
    except (
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        ZeroDivisionError,
    ) as error:
        raise ConfigError(
            f"{kind.__name__} cannot be built: {cause_of(error)}"
        ) from error


def moved(scheduler: Any, optimizer: Optimizer) -> Any:
    """`scheduler`, and those in it, for `optimizer`, which a device may have made of
    the one that it was made for."""
    for part in (scheduler, *getattr(scheduler, "_schedulers", ())):
        part.optimizer = optimizer
    return scheduler


def _given(kind: type[Scheduler], optimizer: Any) -> dict[str, Any]:
    """`optimizer` as an argument, where `kind` takes one."""
    takes_it = "optimizer" in inspect.signature(kind).parameters
    return {"optimizer": optimizer} if takes_it else {}


def _part(entry: Any) -> tuple[type[Scheduler], dict[str, Any]]:
    """One of `schedulers`: (class, arguments)."""
    if not isinstance(entry, Mapping) or "policy" not in entry:
        raise ConfigTypeError(
            f"each of schedulers must be a dict with a 'policy', got {entry!r}"
        )
    policy = entry["policy"]
    kind = find_scheduler(str(policy))
    if kind is None:
        hint = nearest(str(policy), scheduler_names())
        raise UnknownNameError(f"no torch scheduler {policy!r}; {hint}")
    return kind, {key: value for key, value in entry.items() if key != "policy"}
