"""What a captured update keeps as it was: compared, or given to it anew, each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, str, type(None))
"""Values of Python that a graph holds as they were."""
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class Rates:
    """Learning rates where a graph can read them, as schedules change them."""

    def __init__(self) -> None:
        self.in_graph = False
        """Whether the optimizer's step can be captured: it is torch's own, nothing is
        hung on it, and it reads learning rates and counters on the device."""
        self.outside = False
        """Whether it is to be left out all the same."""
        self._groups: list[tuple[dict[str, Any], Tensor]] = []
        self._filled: list[float] = []

    @contextmanager
    def of(self, optimizer: Any, *, capturing: bool = False) -> Iterator[None]:
        """While an update runs, the rates are tensors, if its step can be captured.

        Also where it is not captured: a tensor of fp32 is not to the last bit what a
        number of Python is.
        """
        groups = optimizer.param_groups
        self.in_graph = (
            not self.outside
            and type(optimizer).__module__.startswith("torch.optim.")
            and _steps_plainly(optimizer)
            and all(each.get("capturable") or each.get("fused") for each in groups)
        )
        if not self.in_graph:
            yield
            return
        numbers = [group for group in groups if not isinstance(group["lr"], Tensor)]
        if list(map(id, numbers)) != [id(group) for group, _ in self._groups]:
            self._groups = [(each, _number_beside(each)) for each in numbers]
            self._filled = []
        self.fill()
        names = {"lr", "capturable"} if capturing else {"lr"}
        kept = [{key: group[key] for key in names & group.keys()} for group in groups]
        for group, rate in self._groups:
            group["lr"] = rate
            if capturing and "capturable" in group:  # torch's check of a fused step
                group["capturable"] = True
        try:
            yield
        finally:
            for group, values in zip(groups, kept, strict=True):
                group.update(values)

    def fill(self) -> None:
        """Take over the rates of the groups, where they have changed."""
        now = [group["lr"] for group, _ in self._groups]
        if now != self._filled:
            for (_, rate), value in zip(self._groups, now, strict=True):
                rate.fill_(value)
            self._filled = now


class Held:
    """What a graph has taken as it was; `change` says what is not so any more.

    Args:
        optimizer: None where its step is in no graph.
    """

    def __init__(self, module: nn.Module, optimizer: Any) -> None:
        self._tensors = [*module.named_parameters(), *module.named_buffers()]
        self._plain: list[tuple[str, dict[str, Any], str]] = [
            (label(name, part), vars(part), key)
            for name, part in module.named_modules()
            for key, value in vars(part).items()
            if isinstance(value, PLAIN)
        ]
        self._hooks = [each for part in module.modules() for each in hooks_of(part)]
        self._optimizer = optimizer
        self._of_optimizer = self._identity()
        for number, group in enumerate(
            [] if optimizer is None else optimizer.param_groups
        ):
            owner = f"group {number} of the optimizer"
            names = group.keys() - {"lr", "params"}
            self._plain += [(owner, group, name) for name in sorted(names)]
        self._values, self._places = self._now()

    def change(self) -> str | None:
        """What is not as it was; None where all is."""
        if self._identity() != self._of_optimizer:
            return "the optimizer has another state, other groups or hooks"
        if any(self._hooks):
            return "a module has hooks"
        values, places = self._now()
        if values != self._values:
            changed = zip(self._plain, self._values, values, strict=True)
            return next(
                f"{owner}: {key} was {old!r} and is {new!r}"
                for (owner, _, key), old, new in changed
                if old != new
            )
        if places != self._places:
            moved = zip(self._tensors, self._places, places, strict=True)
            return next(
                f"{name} has other memory, or begins or ends to be trained"
                for (name, _), old, new in moved
                if old != new
            )
        return None

    def _identity(self) -> Any:
        if self._optimizer is None:
            return None
        one = self._optimizer
        return id(one.state), len(one.param_groups), _steps_plainly(one)

    def _now(self) -> tuple[list[Any], list[Any]]:
        values = [owner.get(key) for _, owner, key in self._plain]
        return values, [(t.data_ptr(), t.requires_grad) for _, t in self._tensors]


def label(name: str, module: nn.Module) -> str:
    """A module for a reader: its class, and its name in the model."""
    return f"{type(module).__name__} {name}".strip()


def hooks_of(module: nn.Module) -> list[Any]:
    """The hooks that its call runs, by kind; Python, which no graph runs."""
    return [vars(module)[kind] for kind in _HOOKS]


def _steps_plainly(optimizer: Any) -> bool:
    """Whether nothing of Python's is hung on its step."""
    return (
        "step" not in vars(optimizer)
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
    )


def _number_beside(group: dict[str, Any]) -> Tensor:
    return torch.zeros((), device=group["params"][0].device)
