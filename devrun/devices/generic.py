"""Any accelerator that PyTorch supports itself: Apple's mps, Intel's xpu, npu, ...

`torch.accelerator` (torch 2.6 and later) is the interface to the one that the
installed build has; what only some of them offer is asked of their module and left
out elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from devrun.devices.base import DeviceInfo
from devrun.devices.eager import EagerAdapter
from devrun.devices.missing import MissingOperators, looked_for, without_kernels
from devrun.devices.options import EagerOptions, IndexedOptions, option, refused
from devrun.devices.placement import chosen_index
from devrun.errors import DeviceUnavailableError, DevrunError
from devrun.step import StepOutput
from devrun.text import joined
from devrun.torch_features import autocasts, lacks

if TYPE_CHECKING:
    from devrun.probes.probe import Probes

logger = logging.getLogger("devrun")


@dataclass(frozen=True)
class GenericOptions(IndexedOptions):
    """For devices whose operators are a plug-in's, which may lack some."""

    fallback: str | None = option(None, str, type(None))
    """`cpu` has the host do what the device has no kernel for; None ends the run."""


class GenericAdapter(EagerAdapter):
    """The accelerator that the installed torch has, under its own name."""

    name = "accelerator"
    device_type: ClassVar[str | None] = None
    """What `torch.device` calls it; None takes the one that is here."""
    how_to_get: ClassVar[str] = "install the torch build or plug-in of its vendor"
    options_type = GenericOptions
    options: GenericOptions

    def __init__(self, options: EagerOptions | None = None) -> None:
        super().__init__(options)
        if self.options.fallback not in (None, "cpu"):
            clause = (
                f"must be 'cpu', got {self.options.fallback!r}; leave it out to end"
            )
            raise refused(self.name, "fallback", f"{clause} a run that needs it")
        self.missing: dict[str, str | None] = {}
        """Operators without a kernel that were called -> the user's line."""
        self._looked: set[str] = set()
        """Kinds of steps that were looked at."""

    @classmethod
    def unavailable_reason(cls) -> str | None:
        if lacks("2.6"):
            return f"it needs torch 2.6 or later, this is {torch.__version__}"
        here = _current_type()
        if here is None:
            return f"torch {torch.__version__} sees no accelerator; {cls.how_to_get}"
        if cls.device_type not in (None, here):
            return f"the accelerator of this torch is {here}; {cls.how_to_get}"
        return None

    @classmethod
    def list_devices(cls) -> Sequence[DeviceInfo]:
        if cls.unavailable_reason() is not None:
            return ()
        kind = _current_type() or "cpu"
        dtypes = ("fp32", "bf16", "fp16") if autocasts(kind) else ("fp32",)
        return tuple(
            DeviceInfo(*_name_and_memory(kind, index), dtypes)
            for index in range(torch.accelerator.device_count())
        )

    def train_step(
        self,
        model: Any,
        batch: Any,
        optimizer: Any,
        on_grads: Callable[[], None] | None = None,
    ) -> StepOutput:
        with self._complete("train"):
            return super().train_step(model, batch, optimizer, on_grads)

    def eval_step(self, model: Any, batch: Any, mode: str = "val") -> StepOutput:
        with self._complete(mode):
            return super().eval_step(model, batch, mode)

    @contextmanager
    def _complete(self, kind: str) -> Iterator[None]:
        """Around a step; the first of a kind shows what the device has no kernel for.

        Raises:
            DeviceUnavailableError: naming all of it, unless the host is to do it.
        """
        done = kind in self._looked and not self.missing
        if done or self.options.compile:  # whose graphs call no operator of the user's
            yield
            return
        before = len(self.missing)
        look = MissingOperators if kind in self._looked else looked_for
        try:
            with look(self.device, self.missing):
                yield
        except NotImplementedError as error:
            if isinstance(error, DevrunError):
                raise
            raise DeviceUnavailableError(
                f"device {self.name!r}: {joined(error)}"
            ) from error
        self._looked.add(kind)
        if len(self.missing) == before:
            return
        more = dict(list(self.missing.items())[before:])
        said = without_kernels(self.name, more)
        if self.options.fallback is None:
            raise DeviceUnavailableError(
                f"{said}: use other operators, or set device: {{type: {self.name}, "
                "fallback: cpu}, which has the host do them"
            )
        logger.warning("%s: the host does them, which waits for the device", said)

    @classmethod
    def probes(cls) -> Probes:
        from devrun.devices.generic_probes import PROBES

        return PROBES

    def stats(self) -> dict[str, float]:
        peak = self._call("max_memory_allocated")
        known = {} if peak is None else {"peak_mib": peak / 2**20}
        return {**super().stats(), **known}

    def empty_cache(self) -> None:
        self._call("empty_cache")

    def synchronize(self) -> None:
        # some plug-ins have their own, and not what torch.accelerator asks for
        if hasattr(getattr(torch, self.device.type, None), "synchronize"):
            self._call("synchronize")
        else:
            torch.accelerator.synchronize()

    def rng_state(self) -> dict[str, Any]:
        state = self._call("get_rng_state")
        return {} if state is None else {self.device.type: state}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        if self.device.type in state:
            self._call("set_rng_state", state[self.device.type].cpu())

    def claim(self) -> torch.device:
        here = torch.accelerator.device_count()
        index = chosen_index(self.name, self.options.index, here)
        if index is not None:
            if lacks("2.8"):  # where the old name warns
                torch.accelerator.set_device_idx(index)
            else:
                torch.accelerator.set_device_index(index)
        # A single device goes without a number: some types know only one.
        kind = _current_type() or "cpu"
        return torch.device(kind) if index is None else torch.device(kind, index)

    def _call(self, name: str, *args: Any) -> Any:
        """Call `name` of the device's module; None where it has no such function."""
        module = getattr(torch, self.device.type, None)
        function = getattr(module, name, None)
        return None if function is None else function(*args)


class MPSAdapter(GenericAdapter):
    """Apple silicon."""

    name = "mps"
    device_type = "mps"
    how_to_get = "mps needs an Apple silicon Mac and its usual torch build"


class XPUAdapter(GenericAdapter):
    """Intel GPUs."""

    name = "xpu"
    dist_backend = "xccl"
    device_type = "xpu"
    how_to_get = "xpu needs an Intel GPU, its driver and the xpu build of torch"


class NPUAdapter(GenericAdapter):
    """Ascend processors, through the vendor's plug-in."""

    name = "npu"
    dist_backend = "hccl"
    device_type = "npu"
    how_to_get = "npu needs an Ascend device, CANN and the package torch_npu"


def _current_type() -> str | None:
    """The type of the accelerator that is here now, or None."""
    try:
        if not torch.accelerator.is_available():
            return None
    except RuntimeError:  # torch 2.6, of a plug-in that brings no guard of its device
        return None
    current = torch.accelerator.current_accelerator()
    return None if current is None else current.type


def _name_and_memory(kind: str, index: int) -> tuple[str, int | None]:
    module = getattr(torch, kind, None)
    read = getattr(module, "get_device_properties", None)
    properties = None if read is None else read(index)
    name = getattr(properties, "name", None) or f"{kind}:{index}"
    return str(name), getattr(properties, "total_memory", None)


def plugged_in(name: str) -> type[GenericAdapter]:
    """The adapter of the device that a plug-in has given torch under that name."""
    how = f"the plug-in that brings {name!r} finds none"
    own = {"name": name, "device_type": name, "how_to_get": how}
    return type("PluggedInAdapter", (GenericAdapter,), own)
