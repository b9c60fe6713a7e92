"""`Layout`: convolutions in half precision, which tensor cores do channels-last."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.rehearsal.check.cuda.called import Called
from devrun.rehearsal.check.cuda.frames import line_asking
from devrun.rehearsal.check.cuda.options import asked_of
from devrun.rehearsal.check.cuda.origins import flat_tensors
from devrun.rehearsal.check.findings import Finding
from devrun.runners.training import Training
from devrun.tensors import map_tensors

_TILE = 8
"""Channels that tensor cores take together; others are padded."""
_MOST = 0.5
"""Of the convolutions: below this share a model is not one of convolutions."""


class Layout(Called):
    """Advises `channels_last`, and names what in the forward pass loses it."""

    _asked = False

    def before(self, cfg: Any) -> None:
        self._asked = bool(asked_of(cfg, self.request.device).get("channels_last"))

    def tried(self, training: Training) -> Iterator[Finding]:
        runner = training.runner
        if not (self._asked or _suits(runner)):
            return
        (call,) = self.calls.values()
        lost = self.aside(training, partial(losses, runner.model, *call))
        if not self._asked:
            yield Finding(
                severity="advice",
                kind="channels-last",
                what="channels_last",
                why=f"{runner.policy.precision} convolutions run on tensor cores in "
                f"this memory format, and the others are converted{_names(lost)}",
                remedy="device: {type: cuda, channels_last: true}",
            )
        for name, site in lost:
            yield Finding(
                severity="advice",
                kind="channels-last lost",
                what=name,
                why="its result is contiguous, and the next convolution copies it",
                remedy="x.contiguous(memory_format=torch.channels_last) behind it, or "
                "an operator that keeps the format",
                site=site,
            )


def _names(lost: list[tuple[str, str | None]]) -> str:
    named = ", ".join(f"{name} at {site}" if site else name for name, site in lost)
    return f"; lost again by {named}" if named else ""


def _suits(runner: Any) -> bool:
    """Whether most convolutions are of half precision and fill the tensor cores."""
    found = [one for one in runner.model.modules() if isinstance(one, nn.Conv2d)]
    full = [
        one
        for one in found
        if one.groups == 1 and not (one.in_channels % _TILE or one.out_channels % _TILE)
    ]
    half = runner.policy.precision in ("fp16", "bf16")
    return half and len(found) > 1 and len(full) > _MOST * len(found)


def losses(model: nn.Module, args: Any, kwargs: Any) -> list[tuple[str, str | None]]:
    """Operators of a forward pass in channels-last whose result is not, with lines."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    given = map_tensors(_formatted, (args, kwargs))
    with _Formats() as seen:
        model(*given[0], **given[1])
    return list(seen.lost)


class _Formats(TorchDispatchMode):
    """Looks for operators of which images go in channels-last, and come out not."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: dict[tuple[str, str | None], None] = {}
        self._last: tuple[str, str | None] | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func._schema.name.rpartition("::")[2]
        inputs = [one for one in flat_tensors(args) if _is_image(one)]
        if name == "convolution" and inputs and not _is_last(inputs[0]):
            if self._last is not None:  # else nothing came of it, as before a head
                self.lost[self._last] = None
        elif inputs and all(map(_is_last, inputs)):
            outputs = [one for one in flat_tensors((made,)) if _is_image(one)]
            if any(not _is_last(one) and one.is_contiguous() for one in outputs):
                self._last = name.strip("_"), line_asking()
        return made


def _is_image(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and min(tensor.shape[1:]) > 1


def _is_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


def _formatted(tensor: Tensor) -> Tensor:
    if tensor.dim() == 4 and tensor.is_floating_point():
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor
