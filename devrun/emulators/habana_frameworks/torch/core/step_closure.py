"""The step marker of lazy mode; in eager mode everything here does nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from habana_frameworks._emulation import lazy
from habana_frameworks._emulation.settings import SETTINGS


def mark_step(device_str: str = "", sync: bool = False) -> None:
    """Close the lazy graph: look it up, compile it where it is new, launch it."""
    lazy.mark_step()


def _mark_step_if_lazy(device_str: str = "", sync: bool = False) -> None:
    """The marker that optimizers set; not the user's, so no closures run."""
    lazy.flush("optimizer")


def add_step_closure(closure: Callable[..., Any], args: tuple[Any, ...] = ()) -> None:
    """Run `closure(*args)` once, right after the next marker, in order."""
    if SETTINGS.lazy:
        lazy.add_closure(closure, tuple(args))


def iter_mark_step() -> None:
    """A marker that also ends an iteration of the per-iteration graph count."""
    lazy.mark_step()
    lazy.GRAPH.end_iteration()
