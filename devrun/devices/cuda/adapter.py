"""CUDA, and ROCm, which torch presents under the same name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from devrun.devices.base import DeviceInfo
from devrun.devices.eager import EagerAdapter
from devrun.devices.fast import has_convolutions
from devrun.devices.options import EagerOptions, IndexedOptions
from devrun.devices.placement import chosen_index
from devrun.models.step_module import StepModule
from devrun.step import MicroBatches
from devrun.tensors import tensors_in

if TYPE_CHECKING:
    from devrun.probes.probe import Probes


class CUDAAdapter(EagerAdapter):
    """One GPU per process; several under a launcher."""

    name = "cuda"
    dist_backend = "nccl"
    options_type = IndexedOptions
    options: IndexedOptions

    def __init__(self, options: EagerOptions | None = None) -> None:
        super().__init__(options)
        self._asked = self.options
        self._settings = BackendSettings()
        self._undo = ExitStack()

    @classmethod
    def unavailable_reason(cls) -> str | None:
        if not torch.backends.cuda.is_built() and torch.version.hip is None:
            return (
                f"torch {torch.__version__} is built without CUDA or ROCm; install a "
                "build for your GPU (pytorch.org, Get Started)"
            )
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")  # torch says here what is wrong
            if torch.cuda.is_available():
                return None
        told = str(said[0].message).splitlines()[0] if said else "no GPU is visible"
        tool = "rocm-smi" if torch.version.hip else "nvidia-smi"
        return f"{told}; check {tool}, the driver and CUDA_VISIBLE_DEVICES"

    @classmethod
    def probes(cls) -> Probes:
        from devrun.devices.cuda.probes import PROBES

        return PROBES

    @classmethod
    def list_devices(cls) -> Sequence[DeviceInfo]:
        if cls.unavailable_reason() is not None:
            return ()
        return tuple(_describe(index) for index in range(torch.cuda.device_count()))

    def stats(self) -> dict[str, float]:
        peak = torch.cuda.max_memory_allocated(self.device)
        return {**super().stats(), "peak_mib": peak / 2**20}

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def rng_state(self) -> dict[str, Any]:
        return {"cuda": torch.cuda.get_rng_state(self.device)}

    def set_rng_state(self, state: Mapping[str, Any]) -> None:
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"].cpu(), self.device)

    def teardown(self) -> None:
        super().teardown()
        self._settings.undo()
        self._undo.close()

    def switches(self, model: nn.Module, optimizer: Any) -> dict[str, Any]:
        own: dict[str, Any] = {"tf32": True}
        if torch.cuda.is_bf16_supported(including_emulation=False):
            own["precision"] = "bf16"
        if has_convolutions(model):
            own["channels_last"] = True
        if not self.options.deterministic:  # kernels are chosen by their time
            own["compile"] = {"regions": True}
        return {**own, **super().switches(model, optimizer)}

    def placed(self, model: StepModule, optimizer: Any) -> Any:
        options, asked = self.options, self._asked
        if options.tf32 and not asked.tf32:
            self._settings.set_tf32(True)
        if options.compile and not asked.compile:  # nobody asked: go on without
            patched = torch._dynamo.config.patch(suppress_errors=True)
            self._undo.enter_context(patched)
        return super().placed(model, optimizer)

    def claim(self) -> torch.device:
        here = torch.cuda.device_count()
        index = chosen_index(self.name, self.options.index, here)
        index = torch.cuda.current_device() if index is None else index
        torch.cuda.set_device(index)
        if self.options.tf32 is not None:
            self._settings.set_tf32(self.options.tf32)
        if self.options.cudnn_benchmark is not None:
            self._settings.set_benchmark(self.options.cudnn_benchmark)
        if self.options.deterministic:
            self._settings.set_deterministic()
        return torch.device("cuda", index)

    def transfers(self, move: Callable[[Any], Any]) -> dict[str, Any]:
        aside = _CopyAside(self.device, move)
        return {
            "transfer": aside.start,
            "receive": aside.finish,
            "lookahead": 1,
            "pin_memory": True,  # only copies from pinned memory overlap with compute
        }


class BackendSettings:
    """Sets TF32, cuDNN's benchmark mode and its determinism; `undo` restores them."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set_tf32(self, enabled: bool) -> None:
        """TF32 or full fp32 in matrix products and convolutions."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if enabled else "highest")
        self._undo.append(lambda: torch.set_float32_matmul_precision(before))
        cudnn = torch.backends.cudnn
        if hasattr(cudnn, "conv"):  # torch 2.9 named a setting for each operation
            kinds = (cudnn.conv, cudnn.rnn)
            for kind in kinds:
                self._set(kind, "fp32_precision", "tf32" if enabled else "ieee")
        else:
            self._set(cudnn, "allow_tf32", enabled)

    def set_benchmark(self, enabled: bool) -> None:
        self._set(torch.backends.cudnn, "benchmark", enabled)

    def set_deterministic(self) -> None:
        self._set(torch.backends.cudnn, "deterministic", True)
        self._set(torch.backends.cudnn, "benchmark", False)

    def undo(self) -> None:
        """Everything as it was; safe twice."""
        while self._undo:
            self._undo.pop()()

    def _set(self, owner: object, name: str, value: object) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))


@dataclass(frozen=True)
class _Copying:
    batch: Any
    done: torch.cuda.Event


class _CopyAside:
    """Copies a batch on a stream of its own while the one before it is computed."""

    def __init__(self, device: torch.device, move: Callable[[Any], Any]) -> None:
        self._device = device
        self._move = move
        self._stream = torch.cuda.Stream(device)

    def start(self, batch: Any) -> _Copying:
        with torch.cuda.stream(self._stream):
            return _Copying(self._move(batch), self._stream.record_event())

    def finish(self, item: Any) -> Any:
        """The batch, or `MicroBatches` of batches; compute waits for its copy only."""
        if isinstance(item, MicroBatches):
            return MicroBatches(self.finish(part) for part in item)
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(item.done)
        # else its memory could be given to a later copy while compute still reads it
        for tensor in tensors_in(item.batch):
            if tensor.is_cuda:
                tensor.record_stream(compute)
        return item.batch


def _describe(index: int) -> DeviceInfo:
    properties = torch.cuda.get_device_properties(index)
    name = properties.name
    if torch.version.hip:
        name = f"{name} (ROCm {torch.version.hip})"
    ampere = torch.version.hip is None and properties.major >= 8
    dtypes = ["fp32"] + ["tf32"] * ampere
    if ampere or torch.version.hip:
        dtypes.append("bf16")
    return DeviceInfo(name, properties.total_memory, (*dtypes, "fp16"))
