"""`Unused`: parameters without a gradient, for which DistributedDataParallel waits."""

from __future__ import annotations

from typing import Any

from torch import nn

from devrun.hooks.base import Hook, Priority
from devrun.rehearsal.check.findings import Finding
from devrun.rehearsal.check.notebook import Notebook
from devrun.rehearsal.check.probe import Probe
from devrun.rehearsal.check.request import Request
from devrun.rehearsal.check.sources import assigned
from devrun.run import Run
from devrun.runners.device_section import parallel_section
from devrun.runners.training import Training

_SHOWN = 3


class Unused(Probe):
    """Looks at the gradients after each update."""

    def __init__(self, request: Request, note: Notebook) -> None:
        super().__init__(request, note)
        self.by_name: dict[str, int] = {}
        """Parameter -> updates in which it had no gradient."""
        self.updates = 0
        self._finds = False

    def before(self, cfg: Any) -> None:
        asked = parallel_section(cfg) or {}
        finds = ("find_unused_parameters", "static_graph")
        self._finds = any(asked.get(name) for name in finds)

    def built(self, training: Training) -> None:
        self.by_name, self.updates = {}, 0
        training.runner.register_hook(_Looks(self))

    def after(self, training: Training) -> None:
        if not self.by_name or self._finds or training.runner.optimizer is None:
            return
        names = list(self.by_name)
        adapter: Any = training.runner.adapter
        if adapter.update.owner != "adapter":
            return  # who updates by himself may keep no gradients
        always = all(count == self.updates for count in self.by_name.values())
        when = "any" if always else "every"
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        self.note.found(
            Finding(
                severity="differs",
                kind="unused parameters",
                what=", ".join(names[:_SHOWN]) + more,
                why=f"the loss does not reach {'them' if names[1:] else 'it'} in "
                f"{when} update: with several GPUs, DistributedDataParallel raises at "
                "the next",
                remedy="find_unused_parameters: true, or requires_grad_(False) where "
                "no update needs them",
                site=_site(training.runner.model, names[0]),
                fix={"find_unused_parameters": True},
            )
        )


def _site(model: nn.Module, name: str) -> str | None:
    """The line that makes the parameter, or the module that it is in."""
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        owner = model.get_submodule(".".join(parts[:depth]))
        site = assigned(type(owner), parts[depth])[0]
        if site is not None and not type(owner).__module__.startswith("torch."):
            return site
    return None


class _Looks(Hook):
    """After the optimizer, which leaves the gradients until the next update."""

    priority = Priority.VERY_HIGH

    def __init__(self, unused: Unused) -> None:
        self._unused = unused

    def after_train_iter(self, runner: Run) -> None:
        self._unused.updates += 1
        counts = self._unused.by_name
        without = [
            name
            for name, parameter in runner.model.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        trained = sum(one.requires_grad for one in runner.model.parameters())
        if len(without) < trained:  # else the whole update was left out
            for name in without:
                counts[name] = counts.get(name, 0) + 1
