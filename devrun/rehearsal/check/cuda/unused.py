"""`Unused`: parameters without a gradient, for which DistributedDataParallel waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import nn

from devrun.hooks.base import Priority
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
    """Looks at the gradients after each update, until the next of which they stay."""

    priority = Priority.VERY_HIGH

    def __init__(self, request: Request, note: Notebook) -> None:
        super().__init__(request, note)
        self.by_name: Counter[str] = Counter()
        """Parameter -> updates in which it had no gradient."""
        self.updates = 0
        self._finds = False

    def before(self, cfg: Any) -> None:
        asked = parallel_section(cfg) or {}
        finds = ("find_unused_parameters", "static_graph")
        self._finds = any(asked.get(name) for name in finds)

    def built(self, training: Training) -> None:
        self.by_name, self.updates = Counter(), 0
        training.runner.register_hook(self)

    def after_train_iter(self, runner: Run) -> None:
        self.updates += 1
        without = [
            name
            for name, parameter in runner.model.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        trained = sum(one.requires_grad for one in runner.model.parameters())
        if len(without) < trained:  # else the whole update was left out
            self.by_name.update(without)

    def after(self, training: Training) -> Iterator[Finding]:
        if not self.by_name or self._finds or training.runner.optimizer is None:
            return
        names = list(self.by_name)
        adapter: Any = training.runner.adapter
        if adapter.update.owner != "adapter":
            return  # who updates by himself may keep no gradients
        always = all(count == self.updates for count in self.by_name.values())
        when = "any" if always else "every"
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        yield Finding(
            severity="differs",
            kind="unused parameters",
            what=", ".join(names[:_SHOWN]) + more,
            why=f"the loss does not reach {'them' if names[1:] else 'it'} in {when} "
            "update: with several GPUs, DistributedDataParallel raises at the next",
            remedy="find_unused_parameters: true, or requires_grad_(False) where no "
            "update needs them",
            site=_site(training.runner.model, names[0]),
            fix={"find_unused_parameters": True},
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
