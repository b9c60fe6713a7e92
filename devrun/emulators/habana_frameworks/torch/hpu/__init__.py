"""`torch.hpu`: the device, its memory, random stream, streams, graphs, metrics."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from habana_frameworks._emulation import switches
from habana_frameworks._emulation.dispatch import sync
from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks.torch.hpu import metrics, random
from habana_frameworks.torch.hpu._utils import _get_device_index  # noqa: F401 - used by name
from habana_frameworks.torch.hpu.device import (
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_gencode_flags,
    init,
    is_available,
    is_initialized,
    set_device,
)
from habana_frameworks.torch.hpu.events import Event
from habana_frameworks.torch.hpu.memory import (
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    memory_usage,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from habana_frameworks.torch.hpu.metrics import (
    metric_global,
    metric_localcontext,
    metrics_dump,
)
from habana_frameworks.torch.hpu.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from habana_frameworks.torch.hpu.streams import (
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    record_stream,
    set_stream,
    stream,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "can_device_access_peer",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "disable_dynamic_shape",
    "enable_dynamic_shape",
    "enable_recompute_sdp",
    "getDeterministic",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_autocast_hpu_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_dynamic_shape_status",
    "get_gencode_flags",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "init",
    "initial_seed",
    "is_autocast_hpu_enabled",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "memory_usage",
    "metric_global",
    "metric_localcontext",
    "metrics",
    "metrics_dump",
    "random",
    "recompute_sdp_enabled",
    "record_stream",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "sdp_kernel",
    "seed",
    "seed_all",
    "setDeterministic",
    "set_autocast_hpu_dtype",
    "set_autocast_hpu_enabled",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
]

if SETTINGS.lazy:
    # As in the SDK, these names exist in lazy mode only.
    from habana_frameworks.torch.hpu.graphs import (
        HPUGraph,
        ModuleCacher,
        TensorPacker,
        graph,
        is_current_stream_capturing,
        make_graphed_callables,
        wrap_in_hpu_graph,
    )

    __all__ += [
        "HPUGraph",
        "ModuleCacher",
        "TensorPacker",
        "graph",
        "is_current_stream_capturing",
        "make_graphed_callables",
        "wrap_in_hpu_graph",
    ]


def synchronize() -> None:
    """Wait for the device; flushes the lazy graph."""
    sync("synchronize")


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always True where there is a device."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The types that autocast may be given."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_autocast_hpu_enabled() -> bool:
    """Whether autocast is on for the device."""
    return torch.is_autocast_enabled("hpu")


def set_autocast_hpu_enabled(enabled: bool) -> None:
    """Switch autocast for the device."""
    torch.set_autocast_enabled("hpu", enabled)


def get_autocast_hpu_dtype() -> torch.dtype:
    """The type that autocast lowers to; bfloat16 unless set."""
    return torch.get_autocast_dtype("hpu")


def set_autocast_hpu_dtype(dtype: torch.dtype) -> None:
    """Set the type that autocast lowers to."""
    torch.set_autocast_dtype("hpu", dtype)


def enable_dynamic_shape() -> None:
    """Let the graph compiler refine dynamic shapes; recorded, without effect here."""
    switches.DYNAMIC_SHAPE.set(True)


def disable_dynamic_shape() -> None:
    """Undo `enable_dynamic_shape`."""
    switches.DYNAMIC_SHAPE.set(False)


def get_dynamic_shape_status() -> bool:
    """Whether dynamic shapes are enabled."""
    return switches.DYNAMIC_SHAPE.on


def set_sync_debug_mode(enabled: Any) -> None:
    """Recorded, without effect: every sync is counted here anyway."""
    switches.SYNC_DEBUG.set(bool(enabled))


def get_sync_debug_mode() -> bool:
    """What `set_sync_debug_mode` was given."""
    return switches.SYNC_DEBUG.on


def enable_recompute_sdp(enabled: bool) -> None:
    """Choose the recomputing attention kernel; recorded, same numbers here."""
    switches.RECOMPUTE_SDP.set(enabled)


def recompute_sdp_enabled() -> bool:
    """Whether the recomputing attention kernel is chosen."""
    return switches.RECOMPUTE_SDP.on


@contextlib.contextmanager
def sdp_kernel(enable_recompute: bool = True) -> Iterator[None]:
    """Inside, the recomputing attention kernel is chosen, or not."""
    with switches.RECOMPUTE_SDP.as_(enable_recompute):
        yield


# Deprecated in favour of torch.use_deterministic_algorithms; the vendor's spelling.
def setDeterministic(enabled: bool) -> None:  # noqa: N802
    """Deprecated: torch.use_deterministic_algorithms."""
    torch.use_deterministic_algorithms(enabled)


def getDeterministic() -> bool:  # noqa: N802
    """Deprecated: torch.are_deterministic_algorithms_enabled."""
    return torch.are_deterministic_algorithms_enabled()


def _is_in_bad_fork() -> bool:
    return False


def _lazy_init() -> None:
    init()


def __getattr__(name: str) -> Any:
    """`torch.hpu.FloatTensor` and its like: makers of device tensors."""
    kinds = {
        "FloatTensor": torch.float32,
        "BFloat16Tensor": torch.bfloat16,
        "HalfTensor": torch.float16,
        "LongTensor": torch.int64,
        "IntTensor": torch.int32,
        "ShortTensor": torch.int16,
        "CharTensor": torch.int8,
        "ByteTensor": torch.uint8,
        "BoolTensor": torch.bool,
    }
    if name not in kinds:
        raise AttributeError(f"module 'torch.hpu' has no attribute '{name}'")
    dtype = kinds[name]

    def make(*args: Any) -> torch.Tensor:
        if len(args) == 1 and not isinstance(args[0], int):
            return torch.tensor(args[0], dtype=dtype, device="hpu")
        return torch.empty(args, dtype=dtype, device="hpu")

    return make
