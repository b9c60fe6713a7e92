"""The seam between the runner and the hardware: one `DeviceAdapter` per device.

The runner calls, in this order::

    adapter = from_config(cfg); adapter.setup(None)       # the run seeds
    model, optimizer = adapter.prepare(StepModule(...), optimizer, policy)
    loader = adapter.prepare_dataloader(loader, training=True, seed=seed)
    for batch in loader:                       # a batch is one update's data
        outputs = adapter.train_step(model, batch, optimizer)
    adapter.sync_to_host(model)                # before anything reads the weights
    adapter.teardown()

An adapter owns whatever lives on the device; the runner owns the model, the
optimizer and the loaders, and never asks which device it has.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import nn

from devrun.checkpoint import (
    MmcvCheckpoint,
    load_state_dict,
    mmcv_optimizer_tree,
    optimizer_state_by_name,
    prepare_optimizer_state,
)
from devrun.dist import get_dist_info
from devrun.errors import UnsupportedFeatureError
from devrun.parallel.options import ParallelOptions
from devrun.run import Loader
from devrun.step import Capability, StepOutput, UpdatePolicy

if TYPE_CHECKING:
    from devrun.probes.probe import Probes

logger = logging.getLogger("devrun")


def bare_module(model: Any) -> Any:
    """The module that a script has wrapped in `DataParallel`, or the like, itself."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while isinstance(model, wrappers):
        model = model.module
    return model


@dataclass(frozen=True)
class DeviceInfo:
    """One device as `devrun devices` lists it."""

    name: str
    memory_bytes: int | None = None
    dtypes: tuple[str, ...] = ()
    slow_dtypes: tuple[str, ...] = ()
    """Those that work, but by conversion: the device has no instructions for them."""


class DataShare(NamedTuple):
    """Which part of the samples a process reads: the `rank`th of `size`."""

    rank: int
    size: int
    tells: bool = True
    """Whether its results count: False where another process, which reads the same
    samples, tells them."""


class DeviceAdapter(ABC):
    """Everything one kind of hardware needs, behind verbs common to all."""

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    emulated: bool = False
    parallel: ParallelOptions = ParallelOptions()
    """How several processes train one model, set before `prepare`."""
    precision: str | None = None
    """Of the forward pass, where `performance` chose it, from `prepare` on."""

    @classmethod
    @abstractmethod
    def unavailable_reason(cls) -> str | None:
        """None when the device can be used now, else why not and how to get it.

        Probes lazily and never raises.
        """

    @classmethod
    def list_devices(cls) -> Sequence[DeviceInfo]:
        """The devices that are here; empty when the adapter is not available."""
        return ()

    @classmethod
    def probes(cls) -> Probes:
        """What rehearsals for this device look at, whether it is here or not."""
        from devrun.probes import probe

        return probe.Probes()

    @classmethod
    @abstractmethod
    def from_config(cls, cfg: Mapping[str, Any]) -> DeviceAdapter:
        """An adapter with the options of `cfg`, which is left as it was.

        Raises:
            ConfigError: an unknown option or a value out of range.
        """

    @abstractmethod
    def setup(self, seed: int | None) -> None:
        """Claim the device, join the process group where there is one, seed it.

        May come again, with a seed or without; the rest then stays as it is.

        Raises:
            DeviceUnavailableError: the device or its SDK is not here.
        """

    @property
    def data_share(self) -> DataShare:
        """Which share of the samples this process reads, of how many; after `setup`.

        Raises:
            ConfigError: `parallel` does not fit the number of processes.
            UnsupportedFeatureError: the device cannot do it.
        """
        kind, _ = self.parallel.fitted(get_dist_info()[1])
        if self.parallel != ParallelOptions():
            raise UnsupportedFeatureError(
                f"parallel: device {self.name!r} divides the work by itself and takes "
                f"no type {kind!r}: leave the section out",
                key="parallel",
            )
        return DataShare(*get_dist_info())

    @abstractmethod
    def prepare(
        self, model: nn.Module, optimizer: Any, policy: UpdatePolicy
    ) -> tuple[Any, Any]:
        """Place, split, wrap and convert both; the pair to use from now on.

        `model` is a `devrun.models.StepModule`. `param_groups` keep their order and
        values; nothing global is patched.

        Raises:
            UnsupportedFeatureError: the policy asks for what this device cannot do.
        """

    @abstractmethod
    def prepare_dataloader(
        self, loader: Any, *, training: bool, seed: int | None = None
    ) -> Loader:
        """A loader whose every item is one update's (or one evaluation step's) data.

        Its `len` is the number of iterations; preparing twice changes nothing. `seed`
        is that of the data order and of the randomness inside samples; where it is
        None, that of `setup`.
        """

    @abstractmethod
    def train_step(
        self,
        model: Any,
        batch: Any,
        optimizer: Any,
        on_grads: Callable[[], None] | None = None,
    ) -> StepOutput:
        """One optimizer update; tensors come back detached, without a host sync.

        `on_grads` is called once the gradients are complete (`after_backward`).
        """

    @abstractmethod
    def eval_step(self, model: Any, batch: Any, mode: str = "val") -> StepOutput:
        """One step without gradients; same output, with `predictions` if any.

        `mode` is that of `StepModule`: `val`, or `predict` where there is no loss.
        """

    def check_finite(self, model: Any = None) -> None:
        """Look at the losses not looked at yet, and at the weights of `model`.

        Called at log points and before every save, on each rank by itself.

        Raises:
            DivergedError: one is NaN or infinite, and the policy is to stop or skip.
        """

    @abstractmethod
    def unwrap_model(self, model: Any) -> nn.Module:
        """The user's module, whose `state_dict` keys are the canonical ones."""

    def model_state(self, model: Any, *, full: bool = True) -> dict[str, Any]:
        """The weights and buffers that a checkpoint keeps, after `sync_to_host`.

        Where they are divided over processes: `full` ones, which all must ask for, are
        on rank 0, and tensors without data elsewhere; else each has its DTensors.
        """
        state: dict[str, Any] = self.unwrap_model(model).state_dict()
        return state

    def load_model_state(self, model: Any, state: Any, source: str) -> None:
        """The model takes what `model_state` of any device gave, all of it.

        Raises:
            CheckpointError: it does not fit; `source` names its origin.
        """
        load_state_dict(
            self.unwrap_model(model), state, strict=True, logger=logger, source=source
        )

    def optimizer_state(
        self, model: Any, optimizer: Any, *, full: bool = True
    ) -> dict[str, Any]:
        """The optimizer's state by the names of the parameters; `full` as before."""
        return optimizer_state_by_name(self.unwrap_model(model), optimizer)

    def load_optimizer_state(
        self, model: Any, optimizer: Any, state: Any
    ) -> Callable[[], None]:
        """The function that loads what `optimizer_state` gave, or an MMCV file's.

        Raises:
            CheckpointError: it does not fit; nothing was changed.
        """
        module = self.unwrap_model(model)
        if isinstance(state, MmcvCheckpoint):
            state = mmcv_optimizer_tree(module, optimizer, state)
        return prepare_optimizer_state(module, optimizer, state)

    def sync_to_host(self, model: Any) -> None:
        """Host weights and optimizer state are current on return."""

    def sync_to_device(self, model: Any) -> None:
        """Device copies are current after the host wrote weights (load, resume)."""

    def stats(self) -> Mapping[str, float]:
        """Numbers of the run so far, those that are known.

        `peak_mib`, the peak memory in tensors since the start; `skipped_updates`, which
        were left out for losses or gradients that were not finite or overflowed under
        a loss scale, as `check_finite` last saw.
        """
        return {}

    def empty_cache(self) -> None:
        """Give cached device memory back, where there is a cache."""

    def synchronize(self) -> None:
        """Wait until the device has done everything asked of it."""

    def state_dict(self) -> dict[str, Any]:
        """Update state a resumed run needs, such as the loss scale."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""

    def rng_state(self) -> dict[str, Any]:
        """The device's own random state; the host's is not the adapter's."""
        return {}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `rng_state` gave."""

    @abstractmethod
    def teardown(self) -> None:
        """Release everything; safe twice and after a failed `setup`."""
