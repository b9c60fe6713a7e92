"""Which modules `fully_shard` gathers at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from devrun.errors import ConfigError, nearest
from devrun.models.blocks import blocks_of

_WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict)


def units_of(model: nn.Module, wrap: Any) -> list[nn.Module]:
    """The modules of `model` that `wrap` names, inner ones first; never the model.

    Args:
        wrap: class names, or `{min_params: N}`; None for what the model names in
            `fsdp_blocks` (or Hugging Face's `_no_split_modules`), else its numbered
            blocks.

    Raises:
        ConfigError: a name or a size that no module has.
    """
    if isinstance(wrap, Mapping):
        return _by_size(model, wrap["min_params"])
    if wrap is not None:
        return _by_class(model, [wrap] if isinstance(wrap, str) else list(wrap))
    for attribute in ("fsdp_blocks", "_no_split_modules"):
        own = getattr(model, attribute, None)
        if own:
            known = {type(part).__name__ for part in model.modules()}
            return _by_class(model, [name for name in own if name in known])
    return [block for _, block in blocks_of(model)]


def _by_class(model: nn.Module, names: list[str]) -> list[nn.Module]:
    inside = [part for part in model.modules() if part is not model]
    known = list(dict.fromkeys(type(part).__name__ for part in inside))
    for name in names:
        if name not in known:
            raise ConfigError(
                f"parallel: wrap names {name!r}, and {type(model).__name__} has no "
                f"module of that class; {nearest(name, known)}",
                key="wrap",
            )
    found = [part for part in inside if type(part).__name__ in names]
    return found[::-1]


def _by_size(model: nn.Module, least: int) -> list[nn.Module]:
    found: list[nn.Module] = []

    def left(part: nn.Module) -> int:
        """Parameters below `part` that are in no unit so far."""
        own = sum(p.numel() for p in part.parameters(recurse=False))
        count = own + sum(left(child) for child in part.children())
        # a single layer's weight may be used by others too, as a tied embedding is
        alone = type(part) in _WITHOUT_FORWARD or not list(part.children())
        if count >= least and part is not model and not alone:
            found.append(part)
            return 0
        return count

    left(model)
    if not found:
        raise ConfigError(
            f"parallel: wrap: no module inside {type(model).__name__} has {least} "
            "parameters or more: give a smaller min_params",
            key="wrap",
        )
    return found
