"""`Session`: what a run trains, and on what: adapter, model, optimizer and loaders."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from devrun.checkpoint import host_rng_state, set_host_rng_state
from devrun.data.prepared import PreparedLoader
from devrun.devices.base import DeviceAdapter, bare_module
from devrun.devices.resolve import device_for, resolve_device
from devrun.devices.seeding import seed_streams
from devrun.dist import broadcast_object, get_dist_info
from devrun.errors import ConfigError
from devrun.interop import contract_of
from devrun.models.step_module import ModelContract, StepModule, wrap_fp16_model
from devrun.parallel.options import ParallelOptions
from devrun.parallel.strategy import optimizers_in
from devrun.runners.arguments import describe_loader, length, limited_to
from devrun.runners.saved import malformed
from devrun.step import StepOutput, UpdatePolicy


class Session:
    """The device adapter with the model, the optimizer and the loaders it was given.

    They are placed and wrapped once, by `prepare`, when the policy of the update is
    known; until then another model may take the place of the first.

    Args:
        model, optimizer, loss, batch_processor: as `BaseRunner` takes them.
        device: what `resolve_device` takes; an adapter that is not set up yet is.
        parallel: how several processes train the model; a mapping or its options.
        seed: of the random streams and of the data order. None leaves the streams
            as they are and takes torch's present seed for the data.
        limits: items of an epoch, and of an evaluation, at the most, or a fraction.
        needs_length: refuse loaders that do not know their number of items.

    Raises:
        ConfigError: an argument cannot be used.
        DeviceUnavailableError: the device is not here.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        device: Any = "auto",
        parallel: Any = None,
        loss: Callable[..., Any] | None = None,
        batch_processor: Callable[..., Any] | None = None,
        seed: int | None = None,
        limits: tuple[float | None, float | None] = (None, None),
        needs_length: bool = False,
    ) -> None:
        self.loss, self.batch_processor = loss, batch_processor
        if optimizer is not None:
            self.optimizer = optimizer
        self.prepared = False
        self.model = model
        self.policy = UpdatePolicy()
        self.limits, self.needs_length = limits, needs_length
        self.keeps_seed = seed is not None
        """Whether a resumed run keeps its own seed, not that of its checkpoint."""
        self.adapter: DeviceAdapter = resolve_device(device_for(model, device))
        self.adapter.parallel = ParallelOptions.parse(parallel)
        self.adapter.setup(None)
        self.rank, self.world_size = get_dist_info()
        share = self.adapter.data_share.rank  # refuses what does not fit
        if seed is not None:
            seed_streams(seed, share)
        # Unseeded, the order still follows what the user may have seeded torch with.
        own = torch.initial_seed() % 2**31 if seed is None else seed
        self.seed: int = broadcast_object(own)
        self.eval_steps = 0
        """Evaluation steps, also those of hooks."""
        self._loaders: dict[tuple[int, bool, int], tuple[Any, PreparedLoader]] = {}

    @property
    def model(self) -> nn.Module:
        """The user's module."""
        return self._model

    @model.setter
    def model(self, model: nn.Module) -> None:
        if self.prepared:
            raise ConfigError(
                "the model is on the device already and cannot be replaced; assign "
                "runner.model before run(), or change its parts in place"
            )
        model = bare_module(model)  # the adapter wraps it as its device wants it
        self.contract: ModelContract | None = contract_of(model)
        """How the model is trained where it keeps none of the plain contracts."""
        self.step_module = StepModule(
            model, self.loss, self.batch_processor, self.contract
        )
        self.wrapped: Any = self.step_module
        """The step module as the adapter wrapped it: what a step is given."""
        self._model = model
        if vars(self).get("optimizer") is None:  # it may bring its own
            vars(self).pop("optimizer", None)

    @cached_property
    def optimizer(self) -> Any:
        """The one that was given, else what the model brings, asked for once."""
        return None if self.contract is None else self.contract.optimizer()

    def prepare(self, adapter_state: Mapping[str, Any]) -> None:
        """Put model and optimizer on the device."""
        if self.policy.precision != "fp32":
            wrap_fp16_model(self.model)
        check_parameters(self.optimizer, self.step_module)
        self.wrapped, self.optimizer = self.adapter.prepare(
            self.step_module, self.optimizer, self.policy
        )
        if self.adapter.precision is not None:
            self.policy = replace(self.policy, precision=self.adapter.precision)
        self._model = self.adapter.unwrap_model(self.wrapped)
        with malformed("the state of the device adapter"):
            self.adapter.load_state_dict(adapter_state)
        self.prepared = True

    def update_by(self, policy: UpdatePolicy) -> None:
        """How an update is done, said before the model is on the device."""
        self.policy = policy

    def keep_seed(self, given: bool) -> None:
        """Whether the seed was given; one that was drawn makes way in a resume."""
        self.keeps_seed = given

    def take_seed(self, seed: int) -> None:
        """The seed of a checkpoint, unless the run was given one of its own."""
        if not self.keeps_seed:
            self.seed = seed

    def count_batches(self, loaders: Sequence[Any], flow: Sequence[Any]) -> None:
        """Tell a model how long an epoch is, which its optimizer may depend on."""
        for loader, (mode, _) in zip(loaders, flow):
            if self.contract is not None and mode != "val":
                self.contract.batches = length(loader, needed=False)

    def loader(self, data_loader: Any, *, training: bool) -> PreparedLoader:
        """`data_loader` as the device wants it; the same one each time for one seed.

        Raises:
            ConfigError: it is empty, or an epoch run needs a length that it has not.
        """
        key = (id(data_loader), training, self.seed)
        if key not in self._loaders:
            prepared = self.adapter.prepare_dataloader(
                data_loader, training=training, seed=self.seed
            )
            if not isinstance(prepared, PreparedLoader):  # of a plugin's device
                prepared = PreparedLoader(prepared)
            few = not training and self.world_size > 1  # others have all samples
            if length(prepared, needed=self.needs_length) == 0 and not few:
                raise ConfigError(
                    "the data loader yields nothing: "
                    f"{describe_loader(data_loader)}; check the data set, its "
                    "path, and drop_last"
                )
            limit = self.limits[0 if training else 1]
            if limit is not None:
                prepared = prepared.limited(limited_to(limit, prepared))
            self._loaders[key] = (data_loader, prepared)  # keeps the id alive
            self._loaders[id(prepared), training, self.seed] = (prepared, prepared)
        return self._loaders[key][1]

    def eval_step(self, batch: Any, mode: str) -> StepOutput:
        """One step without gradients; `predict` asks for no loss."""
        self.eval_steps += 1
        return self.adapter.eval_step(self.wrapped, batch, mode)

    def of_groups(
        self, read: Callable[[Mapping[str, Any]], float]
    ) -> list[float] | dict[str, list[float]]:
        """What `read` gives for each parameter group, by name for several optimizers.

        Raises:
            RuntimeError: there is no optimizer.
        """
        if self.optimizer is None:
            raise RuntimeError("the runner has no optimizer, so no lr or momentum")
        if isinstance(self.optimizer, dict):
            return {
                name: [read(group) for group in optimizer.param_groups]
                for name, optimizer in self.optimizer.items()
            }
        return [read(group) for group in self.optimizer.param_groups]

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode; a frozen BatchNorm stays frozen afterwards."""
        was_training = self.wrapped.training
        modes = [(module, module.training) for module in self.wrapped.modules()]
        self.wrapped.eval()
        try:
            yield
        finally:
            self.wrapped.train(was_training)
            for module, training in modes:
                if module.training != training:
                    module.training = training

    def sync_to_host(self) -> None:
        """Host weights and optimizer state are current on return, and finite."""
        self.adapter.sync_to_host(self.wrapped)
        self.adapter.check_finite(self.wrapped)

    def sync_to_device(self) -> None:
        """The device has the weights that the host was given, once there is a copy."""
        if self.prepared:
            self.adapter.sync_to_device(self.wrapped)

    def random_state(self) -> dict[str, Any]:
        """The random streams of this process, on the host and on its device."""
        return {"host": host_rng_state(), "device": self.adapter.rng_state()}

    def set_random_state(self, state: Mapping[str, Any]) -> None:
        """Put the streams back."""
        set_host_rng_state(state["host"])
        self.adapter.set_rng_state(state["device"])

    @contextlib.contextmanager
    def keeping_random_state(self) -> Iterator[None]:
        """What is drawn inside leaves the streams as they were."""
        state = self.random_state()
        try:
            yield
        finally:
            self.set_random_state(state)

    def close_loaders(self) -> None:
        """End worker processes that a loader kept for its next epoch."""
        for _, prepared in self._loaders.values():
            prepared.close()


def check_parameters(optimizer: Any, model: nn.Module) -> None:
    """Refuse an optimizer that has none of the model's parameters.

    Raises:
        ConfigError: it would train nothing.
    """
    own = {id(parameter) for parameter in model.parameters()}
    for each in optimizers_in(optimizer):
        held = [id(param) for group in each.param_groups for param in group["params"]]
        if own.isdisjoint(held):
            raise ConfigError(
                f"the optimizer {type(each).__name__} has no parameter of the model, "
                "and would train nothing of it: make it from the parameters() of this "
                "model (a notebook cell that makes a model, run again, makes another)"
            )
