"""Several processes as one run: rank, world size and the few collectives we need.

Everything is a no-op (world of one) until a process group exists, so callers never
ask first. The group itself is torch's own, formed from torchrun's environment.
"""

from __future__ import annotations

import atexit
import datetime
import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from devrun.errors import (
    ConfigError,
    DeviceUnavailableError,
    DevrunError,
    UnknownNameError,
    nearest,
)
from devrun.launchers import ENVIRONMENT, LAUNCHERS, take_over
from devrun.peers import addresses_of_this_start, let_gloo_finish

if TYPE_CHECKING:
    from torch import Tensor, nn
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

_WITH_HOST = {"nccl": "cpu:gloo,cuda:nccl", "xccl": "cpu:gloo,xpu:xccl"}
"""With gloo beside it, counts and names travel without waiting for the device."""

T = TypeVar("T")


def get_dist_info() -> tuple[int, int]:
    """(rank, world size); (0, 1) without a process group. Does not import torch."""
    group = _group()
    return (0, 1) if group is None else (group.get_rank(), group.get_world_size())


def is_main() -> bool:
    """Whether this process writes files and messages."""
    return get_dist_info()[0] == 0


def launched() -> bool:
    """Whether a launcher such as torchrun started this process as one of several."""
    if not all(name in os.environ for name in ENVIRONMENT):
        return False
    return os.environ["WORLD_SIZE"].isdigit() and int(os.environ["WORLD_SIZE"]) > 1


def local_rank() -> int | None:
    """Place of this process on its machine, or None when there is no launcher."""
    text = os.environ.get("LOCAL_RANK", "")
    return int(text) if launched() and text.isdigit() else None


def init_dist(launcher: str, backend: str | None = None, **kwargs: Any) -> bool:
    """Join the process group that `launcher` prepared; True when this call did it.

    Args:
        launcher: `pytorch` (torchrun), `slurm` (srun), `mpi` (mpirun), or `none`,
            which does nothing.
        backend: `gloo`, `nccl`, ...; None leaves it to torch (gloo for host tensors
            and the usual one of each device type).
        kwargs: for `torch.distributed.init_process_group`; `timeout` may be seconds,
            and `port` is where the processes of `slurm` and `mpi` meet.

    Raises:
        ConfigError: the environment of the launcher is missing.
        DeviceUnavailableError: the group could not be formed.
    """
    if not check_launcher(launcher, kwargs.pop("port", None)):
        return False
    return _join(backend, kwargs)


def check_launcher(launcher: str, port: int | None = None) -> bool:
    """Whether `launcher` has started processes that have a group to join.

    What another launcher than torchrun says is in torch's variables afterwards.

    Args:
        port: see `init_dist`.

    Raises:
        UnknownNameError: there is no such launcher.
        ConfigError: the environment of the launcher is missing.
    """
    if launcher not in LAUNCHERS:
        hint = nearest(launcher, LAUNCHERS)
        raise UnknownNameError(f"no launcher {launcher!r}; {hint}")
    if launcher == "none":
        return False
    if launcher in ("slurm", "mpi"):
        take_over(launcher, port)
    missing = [name for name in ENVIRONMENT if name not in os.environ]
    if missing:
        raise ConfigError(
            f"launcher 'pytorch' needs {', '.join(missing)} in the environment: start "
            "with torchrun --nproc-per-node N"
        )
    return True


def _join(backend: str | None, kwargs: Mapping[str, Any]) -> bool:
    import torch.distributed as group

    from devrun.torch_features import has_backend

    if not group.is_available():
        raise DeviceUnavailableError(
            "this torch build has no torch.distributed; install one that has, or "
            "start a single process"
        )
    if group.is_initialized():
        return False
    options = dict(kwargs)
    if isinstance(options.get("timeout"), (int, float)):
        options["timeout"] = datetime.timedelta(seconds=options["timeout"])
    if backend is not None and ":" not in backend:
        if not has_backend(backend):
            raise DeviceUnavailableError(
                f"backend {backend!r} is not in this torch build; use 'gloo', or a "
                "build made for the device"
            )
        backend = _WITH_HOST.get(backend, backend)
    # At the end of the process, also of one that ends in a group: an error that it
    # caught may have kept it from leaving.
    atexit.unregister(let_gloo_finish)
    atexit.register(let_gloo_finish)
    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        if not {"init_method", "store"} & set(options):
            wait = {key: options[key] for key in ("timeout",) if key in options}
            options.update(addresses_of_this_start(**wait))
        group.init_process_group(backend, **options)
    except (RuntimeError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise DeviceUnavailableError(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not join "
            f"the process group at {where}: {first}"
        ) from error
    return True


def close_dist() -> None:
    """Leave the process group; safe without one."""
    group = _group()
    if group is not None:
        let_gloo_finish()  # torch 2.0 waits for its thread, which may wait for the GIL
        group.destroy_process_group()


def master_only(function: Callable[P, T]) -> Callable[P, T | None]:
    """Decorator: run on rank 0 only; the others get None."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T | None:
        return function(*args, **kwargs) if is_main() else None

    return wrapper


def on_main(action: Callable[[], T]) -> T:
    """What `action` gives on rank 0, on every rank; the others wait for it.

    Raises:
        DevrunError: what `action` raised, on every rank: none is left waiting. Where
            rank 0 raised something else, the others say so.
    """
    if _group() is None:
        return action()
    if is_main():
        try:
            result = action()
        except Exception as error:
            kind = type(error) if isinstance(error, DevrunError) else None
            broadcast_object((None, (kind, f"{type(error).__name__}: {error}")))
            raise
        return broadcast_object((result, None))[0]
    nothing: Any = (None, None)
    result, failure = broadcast_object(nothing)
    if failure is None:
        return result
    kind, message = failure
    if kind is None:
        raise DevrunError(f"rank 0 failed: {message}")
    raise kind(message.partition(": ")[2])


def barrier() -> None:
    """Wait until every rank is here."""
    group = _group()
    if group is not None:
        group.barrier()


def gather_objects(value: T) -> list[T]:
    """`value` of every rank, by rank; on every rank."""
    group = _group()
    if group is None:
        return [value]
    gathered: list[Any] = [None] * group.get_world_size()
    group.all_gather_object(gathered, value)
    return gathered


def broadcast_object(value: T, src: int = 0) -> T:
    """What rank `src` passed, on every rank."""
    group = _group()
    if group is None:
        return value
    box = [value]
    group.broadcast_object_list(box, src=src)
    return box[0]


def weighted_means(totals: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Mean of each name over the ranks, from their (weighted sum, weight)."""
    sums: dict[str, list[float]] = {}
    for rank in gather_objects(totals):
        for name, (total, weight) in rank.items():
            entry = sums.setdefault(name, [0.0, 0.0])
            entry[0] += total
            entry[1] += weight
    return {
        name: total / weight if weight else math.nan
        for name, (total, weight) in sums.items()
    }


def all_reduce_max(value: float) -> float:
    """The largest `value` of all ranks."""
    group = _group()
    if group is None:
        return value
    import torch

    box = torch.tensor([value], dtype=torch.float64, device=_device_for_numbers())
    group.all_reduce(box, op=group.ReduceOp.MAX)
    return float(box.item())


def shared_seed(seed: int | None = None) -> int:
    """`seed`, or a random one that all ranks share."""
    if seed is not None:
        return seed
    return broadcast_object(int.from_bytes(os.urandom(4), "little") % 2**31)


def broadcast_tensors(tensors: Iterable[Tensor], src: int = 0) -> None:
    """Overwrite each tensor by that of rank `src`."""
    group = _group()
    if group is not None:
        for tensor in tensors:
            group.broadcast(tensor.detach(), src=src)


def allreduce_params(
    params: Iterable[Tensor], coalesce: bool = True, bucket_size_mb: int = -1
) -> None:
    """Average parameters or buffers over all ranks, in place.

    Integer tensors, such as the counter of a BatchNorm, take the value of rank 0: a
    mean would not be one of theirs.

    Args:
        params: the same tensors, in the same order, on every rank.
        coalesce, bucket_size_mb: of MMCV; one exchange for each type always does.
    """
    if get_dist_info()[1] == 1:
        return
    tensors = [param.detach() for param in params]
    _average([t for t in tensors if t.is_floating_point()])
    broadcast_tensors(t for t in tensors if not t.is_floating_point())


def allreduce_grads(
    params: Iterable[nn.Parameter], coalesce: bool = True, bucket_size_mb: int = -1
) -> None:
    """Average gradients over all ranks, in place.

    A parameter without a gradient here counts as zero where another rank has one,
    and keeps none where no rank has.
    """
    if get_dist_info()[1] == 1:
        return
    import torch

    used = [param for param in params if param.requires_grad]
    if not used:
        return
    present = torch.tensor(
        [param.grad is not None for param in used],
        dtype=torch.int32,
        device=_device_for_numbers(),
    )
    torch.distributed.all_reduce(present, op=torch.distributed.ReduceOp.MAX)
    grads: list[Tensor] = []
    for param, somewhere in zip(used, present.tolist()):
        if somewhere:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            grads.append(param.grad.detach())
    _average(grads)


def _average(tensors: list[Tensor]) -> None:
    import torch

    by_kind: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    for alike in by_kind.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        torch.distributed.all_reduce(flat)
        flat.div_(torch.distributed.get_world_size())
        parts = flat.split([tensor.numel() for tensor in alike])
        for tensor, part in zip(alike, parts):
            tensor.copy_(part.view(tensor.shape))


def _group() -> Any:
    """`torch.distributed` when there is a process group, else None."""
    # A group can only exist when its module was imported: looking there keeps the
    # commands that need no torch from paying for it.
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    return group


def _device_for_numbers() -> str:
    """Where the group can exchange a number: its first device type, mostly the host."""
    config: str = _group().get_backend_config()
    return config.split(":")[0]
