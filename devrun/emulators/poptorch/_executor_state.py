"""The executor's weights, optimizer state and random numbers between host and device.

Host and device hold separate copies. What the device trained reaches the host on the
first read of the wrapped model, at `copyWeightsToHost`, `detachFromDevice`, `destroy`
and `save`; what the host changed reaches the device only when it is sent.
"""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

from typing import Any

import torch

from poptorch import _devices, _machine, enums
from poptorch import _optimizer_attributes as attributes
from poptorch._compile import Executable
from poptorch._device_optimizer import DeviceOptimizer
from poptorch._errors import Error
from poptorch._logging import logger
from poptorch._refusals import NUMBERS, collecting, refuse
from poptorch._run import Runner
from poptorch._weights import DeviceWeights


class ExecutorState:
    """The part of `PoplarExecutor` that moves data."""

    _executable: Executable | None
    _weights: DeviceWeights
    _runner: Runner | None
    _device_optimizer: DeviceOptimizer | None
    _optimizer: Any
    _options: Any
    _user_model: Any
    _compiled_modes: dict[str, bool]
    _training: bool
    _is_attached: bool
    _rng: list[torch.Tensor]
    _seed: int
    _warnings: attributes.AttributeWarnings
    _compiled_values: list[dict[str, Any]]
    _constants: list[set[str]]
    _optimizer_stale: bool

    def isCompiled(self) -> bool:
        """Whether there is an executable."""
        return self._executable is not None

    def isAttachedToDevice(self) -> bool:
        """Whether the model holds a device."""
        return self._is_attached

    def _need_compiled(self) -> None:
        if self._executable is None:
            raise Error("Model has not been compiled or has been destroyed.")

    # -- weights -----------------------------------------------------------------------

    def copyWeightsToHost(self) -> None:
        """Fetch the weights."""
        self._need_compiled()
        logger.debug("copyWeightsToHost()")
        self._weights.download()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Fetch the weights if a run changed them since; whether it did."""
        if self._executable is None or not self._weights.newer_on_device:
            return False
        if not (self._training and self._is_attached):
            return False
        # Reading the host's tensors in the course of the copy must not ask again.
        self._weights.newer_on_device = False
        self.copyWeightsToHost()
        return True

    def copyWeightsToDevice(self) -> None:
        """Send the weights; trained ones that were not fetched are lost."""
        self._need_compiled()
        self._weights.upload()

    def copyNamedBuffersToDevice(self) -> None:
        """Send the buffers named in `Options.updatableNamedBuffers`."""
        self._need_compiled()
        names = self._options.updatable_named_buffers
        if not names:
            raise Error(
                "copyNamedBuffersToDevice needs Options.updatableNamedBuffers, which "
                "names no buffer"
            )
        self._weights.upload(set(names))

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> Any:
        """Load the user's model, then send it if the model is attached."""
        result = self._user_model.load_state_dict(state_dict, strict=strict)
        if self._is_attached:
            self.copyWeightsToDevice()
        return result

    # -- device ------------------------------------------------------------------------

    def attachToDevice(self) -> None:
        """Take a device and send weights, optimizer state and random state."""
        self._need_compiled()
        if self._is_attached:
            raise Error("Device is already attached")
        self._take_device()
        self._weights.upload()
        self._apply_optimizer()

    def _take_device(self) -> None:
        if self._executable is not None:
            values = self._options._values
            _devices.take(self, self._executable.ipus, values.get("ipu_id"))
            self._is_attached = True

    def detachFromDevice(self) -> None:
        """Fetch what changed and give the device back."""
        self._need_compiled()
        if not self._is_attached:
            raise Error("Device is not attached")
        self._leave()

    def _leave(self) -> None:
        self.copyWeightsToHostIfNeeded()
        if self._training and self._device_optimizer is not None:
            self._read_optimizer_state(self._optimizer)
        _devices.give_back(self)
        self._is_attached = False

    # -- optimizer ---------------------------------------------------------------------

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the device the hyper-parameters of `optimizer`, now or when attached.

        Raises:
            Error: A value that was compiled as a constant changed, or the model is an
                inference model.
            ValueError: Accumulation changes to half precision after compilation.
        """
        if not self._training:
            raise Error("Cannot set an optimizer for an inference model")
        self._warnings.check(optimizer)
        self._choose_reduction(optimizer)
        new = attributes.hyperparameters(optimizer)
        if self._executable is not None:
            attributes.check_constants(self._compiled_values, self._constants, new)
        old = self._optimizer
        if old is not optimizer:
            if getattr(old, "_executor", None) is self:
                self._read_optimizer_state(old)
                old._executor = None
            self._optimizer = optimizer
            self._own_optimizer()
        if self._is_attached:
            self._apply_optimizer()

    def _note_unsent(self) -> None:
        """Write down, where somebody collects, that the device has other settings."""
        if collecting() is None or self._optimizer is None:
            return
        for name, child in self._user_model.named_modules():
            if child.training != self._compiled_modes.get(name, child.training):
                called = "train()" if child.training else "eval()"
                error = Error(
                    f"{called}: it changes flags of the user's modules alone: what was "
                    "compiled trains as before"
                )
                refuse(error, NUMBERS, True)
                break
        if self._weights.freed_or_frozen():
            error = Error(
                "requires_grad: it was changed, of which what was compiled knows "
                "nothing: it trains what it did"
            )
            refuse(error, NUMBERS, True)
        if attributes.hyperparameters(self._optimizer) != self._sent_values:
            error = Error(
                "optimizer: settings were changed, of which no call of setOptimizer() "
                "told the IPU: it goes on with those that it has"
            )
            refuse(error, NUMBERS, True)

    def _choose_reduction(self, optimizer: Any) -> None:
        """Half-precision accumulators need a running mean, so as not to overflow."""
        half = getattr(optimizer, "accum_type", None) == torch.float16
        values = self._options.Training._values
        name = "meanAccumulationAndReplicationReductionStrategy"
        running = enums.MeanReductionStrategy.Running
        if not half or getattr(optimizer, "use_combined_accum", False):
            return
        if values[name] != running and self._executable is not None:
            raise ValueError(
                f"An optimizer with accum_type float16 changes {name} to Running, but "
                "the model is already compiled: call destroy() first"
            )
        values[name] = running

    def _own_optimizer(self) -> None:
        hooks = getattr(self._optimizer, "register_state_dict_pre_hook", None)
        if hasattr(self._optimizer, "variable_attrs"):
            self._optimizer._executor = self
        elif collecting() is not None and hooks is not None:
            hooks(self._note_without_state)

    def _note_without_state(self, optimizer: Any) -> None:
        """Write down, where somebody collects, what is saved of torch's optimizers."""
        has_state = self._device_optimizer and self._weights.optimizer_copies
        if has_state and optimizer is self._optimizer and collecting() is not None:
            error = Error(
                "optimizer: of one of torch's own the state stays on the IPU: what "
                "state_dict() gives has none"
            )
            refuse(error, NUMBERS, True)

    def _remember_optimizer(self) -> None:
        """Note at compilation what is baked in."""
        optimizer = self._optimizer
        self._warnings.check(optimizer)
        self._compiled_values = attributes.hyperparameters(optimizer)
        self._constants = [
            {k for k, v in group.items() if attributes.is_constant(optimizer, k, v)}
            for group in self._compiled_values
        ]
        state = getattr(optimizer, "ipu_state", None)
        if state is not None and optimizer.has_state and self._device_optimizer:
            self._write_state()

    def _apply_optimizer(self) -> None:
        """Send hyper-parameters that differ, and state that was loaded."""
        device, optimizer = self._device_optimizer, self._optimizer
        if device is None:
            return
        new = attributes.hyperparameters(optimizer)
        if new != self._sent_values:
            attributes.log_values(device.family, optimizer, new)
            if self._sent_values:
                device.update(optimizer)
            self._sent_values = new
            self._optimizer_stale = True
            _machine.counts["optimizer_to_device"] += 1
        if getattr(optimizer, "has_state", False):
            self.copyWeightsToHostIfNeeded()
            self._write_state()
            _machine.counts["optimizer_state_to_device"] += 1

    def _write_state(self) -> None:
        """Send what was loaded into the optimizer; it stays as it is until a run."""
        logger.debug("Writing optimiser state tensors from host to IPU memory")
        device, optimizer = self._device_optimizer, self._optimizer
        if device is not None:
            device.write_state(optimizer.ipu_state)
            device.write_params(optimizer.ipu_param)
            optimizer.has_state = self._optimizer_stale = False

    _sent_values: list[dict[str, Any]]

    def _read_optimizer_state(self, optimizer: Any) -> None:
        """Fetch the state into a `poptorch.optim` object, once per run."""
        device = self._device_optimizer
        if device is None or not hasattr(optimizer, "ipu_state"):
            return
        if not self._optimizer_stale:
            logger.debug("Using cached optimiser state dict")
            return
        if optimizer.has_state or not self._is_attached:
            return
        logger.debug("Writing optimiser state tensors from IPU to host.")
        optimizer.ipu_state = device.read_state()
        optimizer.ipu_param = device.read_params()
        self._optimizer_stale = False

    def _optimizer_state_loaded(self, optimizer: Any) -> None:
        """State was put into an optimizer that belongs to this model."""
        if self._is_attached and optimizer is self._optimizer:
            self._apply_optimizer()

    # -- random numbers ----------------------------------------------------------------

    def _seed_device(self) -> None:
        generator = torch.Generator().manual_seed(self._seed)
        self._rng = [generator.get_state()]

    @property
    def rng_state(self) -> list[int]:
        """Seed and state of the device's random numbers."""
        self._need_compiled()
        return [self._seed, *self._rng[0].view(torch.int64).tolist()]

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._need_compiled()
        if not isinstance(state, list) or len(state) < 2:
            raise Error("The random state is a list: the seed and the state")
        self._seed = int(state[0])
        self._rng = [torch.tensor(state[1:], dtype=torch.int64).view(torch.uint8)]
        logger.debug("random state restored")
