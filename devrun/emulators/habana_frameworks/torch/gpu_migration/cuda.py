"""`torch.cuda`: what the device has under the same name, and what has no meaning."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks._emulation.torch_private import CUDA_NOTHING
from habana_frameworks.torch import hpu
from habana_frameworks.torch.gpu_migration.log import MATCH, MISMATCH, MODIFIED, log

SAME = (
    *("is_available", "is_initialized", "init", "is_bf16_supported", "synchronize"),
    *("current_stream", "default_stream", "set_stream", "get_device_name"),
    *("memory_allocated", "max_memory_allocated", "memory_reserved"),
    *("max_memory_reserved", "mem_get_info", "memory_stats", "memory_summary"),
    *("reset_peak_memory_stats", "manual_seed", "manual_seed_all", "seed", "seed_all"),
    "initial_seed",
)
"""Called on the device, without the index of a GPU: a process sees one Gaudi."""
NOTHING = {
    **dict.fromkeys(CUDA_NOTHING),
    "empty_cache": None,
    "ipc_collect": None,
    "is_current_stream_capturing": False,
    "reset_max_memory_allocated": None,
    "reset_max_memory_cached": None,
    "reset_accumulated_memory_stats": None,
    "set_per_process_memory_fraction": None,
}
"""What does nothing on a Gaudi, and what it returns."""
RANGES = ("range_push", "range_pop", "mark")
TYPES = ("Half", "BFloat16", "Float", "Double", "Char", "Short", "Int", "Long", "Bool")


def _same(name: str) -> Callable[..., Any]:
    target = getattr(hpu, name)
    takes_seed = "seed" in name and name not in ("seed", "seed_all", "initial_seed")

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        log(MATCH, f"torch.cuda.{name}", args, kwargs, f"torch.hpu.{name}")
        if takes_seed:
            return target(*args, **kwargs)
        # The one positional argument that is no device is a stream.
        return target(*[a for a in args if isinstance(a, hpu.Stream)])

    return call


def _nothing(name: str, result: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        log(MISMATCH, f"torch.cuda.{name}", args, kwargs, "nothing")
        return result

    return call


def _modified(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        log(MODIFIED, f"torch.cuda.{name}", args, kwargs, f"{__name__}.{name}")
        return function(*args, **kwargs)

    return call


def device_count() -> int:
    """One for each process of the run, so that ranks choose among them."""
    return int(hpu.device_count())


def current_device() -> int:
    """The only one that a process sees."""
    return 0


def set_device(device: Any) -> None:
    """Each process has its own Gaudi: there is nothing to choose."""


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """What programs compare; Gaudi has no number of this kind."""
    return 8, 0


def get_device_properties(device: Any = None) -> SimpleNamespace:
    """The fields that programs read."""
    return SimpleNamespace(
        name=hpu.get_device_name(),
        total_memory=SETTINGS.memory_limit,
        major=8,
        minor=0,
        multi_processor_count=24,
    )


def get_rng_state(device: Any = None) -> torch.Tensor:
    """The state of the device's random stream."""
    state: torch.Tensor = hpu.get_rng_state()
    return state


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Put it back."""
    hpu.set_rng_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """One state: that of the one device."""
    return [get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Put it back."""
    set_rng_state(new_states[0])


@contextlib.contextmanager
def device(chosen: Any) -> Any:
    """As `set_device`, for a while."""
    yield


@contextlib.contextmanager
def nvtx_range(msg: str, *args: Any, **kwargs: Any) -> Any:
    """A range of the profiler, which a Gaudi has not."""
    yield


OTHERWISE = {
    f.__name__: f
    for f in (
        *(device_count, current_device, set_device, get_device_capability),
        *(get_device_properties, get_rng_state, set_rng_state),
        *(get_rng_state_all, set_rng_state_all),
    )
}


def install(replace: Any) -> None:
    """Put all of it into `torch.cuda`."""
    cuda = torch.cuda
    for name in SAME:
        replace(cuda, name, _same(name))
    for name, result in NOTHING.items():
        replace(cuda, name, _nothing(name, result))
    for name, function in OTHERWISE.items():
        replace(cuda, name, _modified(name, function))
    for name in ("Stream", "Event", "stream"):
        replace(cuda, name, getattr(hpu, name))
    for name in ("device", "device_of"):
        replace(cuda, name, device)
    for name in (f"{t}Tensor" for t in TYPES):
        if hasattr(hpu, name):
            replace(cuda, name, getattr(hpu, name))
    for name in RANGES:
        replace(cuda.nvtx, name, _nothing(f"nvtx.{name}", None))
    replace(cuda.nvtx, "range", nvtx_range)
    moved = (*SAME, "get_rng_state", "set_rng_state", "reset_peak_memory_stats")
    for module in (cuda.random, cuda.memory):
        for name in {n for n in (*moved, "empty_cache") if hasattr(module, n)}:
            replace(module, name, getattr(cuda, name))
