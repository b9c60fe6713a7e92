"""A small loop that drives hooks through the stages of a run, for the tests here.

It has the attributes hooks read, a real model, optimizer and hook table, and knows
both ways of counting: `max_epochs`, or `max_iters` without train epochs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from devrun.hooks.base import Hook
from devrun.hooks.dispatch import HookTable
from devrun.log.buffer import LogBuffer
from devrun.step import Capability


class HostAdapter:
    """What hooks ask of a device, on the host; it counts what was asked."""

    def __init__(self, host_weights: bool = True) -> None:
        own = {Capability.GRAD_ACCESS, Capability.HOOK_UPDATE}
        self.capabilities = frozenset(
            own | ({Capability.HOST_WEIGHTS} if host_weights else set())
        )
        self.asked: list[str] = []
        self.recordable: list[Any] = []

    def sync_to_host(self, model: Any) -> None:
        self.asked.append("sync_to_host")

    def sync_to_device(self, model: Any) -> None:
        self.asked.append("sync_to_device")

    def check_finite(self, model: Any = None) -> None:
        self.asked.append("check_finite")

    def profiler_activities(self) -> list[Any]:
        return self.recordable

    def empty_cache(self) -> None:
        self.asked.append("empty_cache")


class Batches:
    """A loader of `length` fixed batches that notes the epochs it is told."""

    def __init__(self, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.data = [torch.randn(4, 3, generator=generator) for _ in range(length)]
        self.epochs: list[int] = []

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.data)


class Loop:
    """Trains a 3 -> 2 linear model; `lrs` and `momenta` hold what each update used."""

    def __init__(
        self,
        *hooks: Hook,
        max_epochs: int | None = None,
        max_iters: int | None = None,
        length: int = 4,
        optimizer: Any = None,
        model: nn.Module | None = None,
        host_weights: bool = True,
        work_dir: str | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2) if model is None else model
        self.optimizer = (
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            if optimizer is None
            else optimizer(self.model)
        )
        self.adapter = HostAdapter(host_weights)
        self.data_loader: Any = Batches(length)
        self.max_epochs, self.max_iters = max_epochs, max_iters
        if max_epochs is not None:
            self.max_iters = max_epochs * length
        self.epoch = self.iter = self.inner_iter = 0
        self.rank, self.world_size = 0, 1
        self.mode: str | None = None
        self.work_dir, self.timestamp = work_dir, "20240101_000000"
        self.log_buffer = LogBuffer()
        self.logger = logging.getLogger("devrun.test")
        self.meta: dict[str, Any] = {"hook_msgs": {}}
        self.eval_contexts: list[Any] = []
        self.lrs: list[Any] = []
        self.momenta: list[Any] = []
        self.table = HookTable(self.adapter.capabilities, "cpu")
        self.stop_at: int | None = None
        for hook in hooks:
            self.register_hook(hook)

    def register_hook(self, hook: Hook, priority: Any = None) -> None:
        self.table.add(hook, priority)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for context in self.eval_contexts:
                stack.enter_context(context(self))
            yield

    def run(self, stop_at: int | None = None) -> Loop:
        """To the end, or only until `stop_at` updates are done."""
        self.stop_at = stop_at
        try:
            self.table.call("before_run", self)
            self.table.refresh()
            if self.max_epochs is None:
                self._run_iterations()
            else:
                self._run_epochs()
            self.table.call("after_run", self)
        except BaseException as error:
            self.table.call("on_exception", self, error)
            raise
        return self

    def save(self) -> dict[str, Any]:
        """What a checkpoint holds of the loop."""
        self.table.call("before_save_checkpoint", self, {})
        return {
            "model": {k: v.clone() for k, v in self.model.state_dict().items()},
            "optimizer": _copied(self.optimizer),
            "hooks": self.table.state_dict(),
            "epoch": self.epoch,
            "iter": self.iter,
        }

    def load(self, saved: dict[str, Any], resume_optimizer: bool = True) -> Loop:
        self.model.load_state_dict(saved["model"])
        if resume_optimizer:
            self.optimizer.load_state_dict(saved["optimizer"])
        self.table.load_state_dict(saved["hooks"])
        self.epoch, self.iter = saved["epoch"], saved["iter"]
        return self

    def validate(self, **values: float) -> None:
        """A val epoch whose only batch gave `values`."""
        self.mode = "val"
        with self.evaluating():
            self.log_buffer.select("val")
            self.table.call("before_val_epoch", self)
            self.table.call("before_val_iter", self)
            self.log_buffer.update(values)
            self.table.call("after_val_iter", self)
            self.table.call("after_val_epoch", self)
            self.log_buffer.clear()
            self.log_buffer.select("train")

    def _run_epochs(self) -> None:
        while self.epoch < (self.max_epochs or 0):
            done = self.iter % len(self.data_loader)
            self.mode = "train"
            self.table.call("before_train_epoch", self)
            for inner_iter, batch in enumerate(self.data_loader):
                if inner_iter < done:
                    continue
                self.inner_iter = inner_iter
                self._update(batch)
                if self.iter == self.stop_at and not self._epoch_is_over():
                    return
            self.table.call("after_train_epoch", self)
            self.epoch += 1
            if self.iter == self.stop_at:
                return

    def _epoch_is_over(self) -> bool:
        return self.inner_iter + 1 == len(self.data_loader)

    def _run_iterations(self) -> None:
        self.table.call("before_epoch", self)
        self.mode = "train"
        while self.iter < (self.max_iters or 0):
            self.epoch, index = divmod(self.iter, len(self.data_loader))
            self._update(self.data_loader.data[index])
            if self.iter == self.stop_at:
                return
        self.table.call("after_epoch", self)

    def _update(self, batch: torch.Tensor) -> None:
        self.table.call("before_train_iter", self)
        optimizers = (
            self.optimizer if isinstance(self.optimizer, dict) else {"": self.optimizer}
        )
        groups = [g for one in optimizers.values() for g in one.param_groups]
        self.lrs.append([float(g["lr"]) for g in groups])
        self.momenta.append(
            [g.get("momentum", g.get("betas", (None,))[0]) for g in groups]
        )
        for one in optimizers.values():
            one.zero_grad()
        self.model(batch).square().mean().backward()
        for one in optimizers.values():
            one.step()
        self.table.call("after_train_iter", self)
        self.iter += 1

    @property
    def first_lrs(self) -> list[float]:
        return [rates[0] for rates in self.lrs]

    @property
    def first_momenta(self) -> list[float]:
        return [values[0] for values in self.momenta]


def _copied(optimizer: Any) -> Any:
    saved = optimizer.state_dict()
    groups = [dict(group) for group in saved["param_groups"]]
    state = {
        key: {k: v.clone() if hasattr(v, "clone") else v for k, v in entry.items()}
        for key, entry in saved["state"].items()
    }
    return {"state": state, "param_groups": groups}
