"""A process group on device tensors that lets gloo carry the host's."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from habana_frameworks._emulation.capture import CAPTURE
from habana_frameworks._emulation.lazy import flush
from habana_frameworks._emulation.recorder import RECORDER
from habana_frameworks._emulation.tensor import HpuTensor
from habana_frameworks._emulation.torch_private import ALLGATHER, REDUCE_SCATTER

SUPPORTED = (
    dist.ReduceOp.SUM,
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
    dist.ReduceOp.PRODUCT,
)


def _hosts(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_hosts(item) for item in value]
    return value._host if type(value) is HpuTensor else value


def _mark(value: Any) -> None:
    """What the host wrote is no input the open graph knows."""
    if isinstance(value, (list, tuple)):
        for item in value:
            _mark(item)
    elif type(value) is HpuTensor:
        value._graph = 0


def _check_reduce(options: Any) -> None:
    if not any(options.reduceOp == op for op in SUPPORTED):
        raise RuntimeError(
            "Unsupported ReduceOp for HCCL process group: SUM, MIN, MAX and PRODUCT "
            "are; for AVG take SUM and divide by the world size"
        )


_ProcessGroup: Any = dist.ProcessGroup


class ProcessGroupHCCL(_ProcessGroup):
    """Collectives flush the lazy graph, refuse averages, and end in gloo."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._name = ""
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """hccl."""
        return "hccl"

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Torch keeps the names of groups whose backends are written in C++ alone."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """By which functional collectives find the group."""
        return self._name

    def _run(self, name: str, tensors: tuple[Any, ...], *rest: Any) -> Any:
        if CAPTURE.active is not None:
            raise RuntimeError(
                "collective nonSFG is not supported during hpu graph capturing"
            )
        flush("collective")
        RECORDER.totals["collective"] += 1
        for value in tensors:
            _mark(value)
        return getattr(self._gloo, name)(*[_hosts(t) for t in tensors], *rest)


def _collective(name: str, tensors: int, options: Any, reduces: bool) -> Any:
    """The method `name`: first so many (lists of) tensors, options last."""

    def run(self: ProcessGroupHCCL, *args: Any, opts: Any = None) -> Any:
        rest = [*args[tensors:], opts] if opts is not None else list(args[tensors:])
        if options is not None and rest in ([], [None]):
            rest = [options()]
        if reduces:
            _check_reduce(rest[-1])
        return self._run(name, args[:tensors], *rest)

    run.__name__ = name
    return run


_Gather: Any = dist.distributed_c10d.AllgatherOptions
COLLECTIVES: dict[str, tuple[int, Any, bool]] = {
    "allreduce": (1, dist.AllreduceOptions, True),
    "allreduce_coalesced": (1, None, True),
    "reduce": (1, None, True),
    "broadcast": (1, dist.BroadcastOptions, False),
    "allgather": (2, _Gather, False),
    "allgather_coalesced": (2, _Gather, False),
    ALLGATHER: (2, _Gather, False),
    "gather": (2, None, False),
    "scatter": (2, None, False),
    "reduce_scatter": (2, None, True),
    REDUCE_SCATTER: (2, None, True),
    "alltoall": (2, None, False),
    "alltoall_base": (2, None, False),
    "send": (1, None, False),
    "recv": (1, None, False),
    "barrier": (0, dist.BarrierOptions, False),
}
"""Name -> how many arguments are tensors, options unless given, whether it reduces."""
NEWER = {
    "all_gather_single": ALLGATHER,
    "reduce_scatter_single": REDUCE_SCATTER,
    "all_to_all_single": "alltoall_base",
}
"""The same under the names of newer releases."""
for _name, _facts in COLLECTIVES.items():
    setattr(ProcessGroupHCCL, _name, _collective(_name, *_facts))
for _name, _same in NEWER.items():
    setattr(ProcessGroupHCCL, _name, _collective(_same, *COLLECTIVES[_same]))


def _one_by_one(name: str) -> Any:
    """`name` of several (output, input) at once, which gloo shows to no Python.

    Functional collectives ask for it even of one. What a group lacks, torch does with
    the interpreter's lock held, which the threads of gloo need.
    """

    def run(self: Any, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        first = list(zip(outputs, inputs))
        last = first.pop()
        for output, given in first:
            getattr(self, name)(output, given, opts=opts).wait()
        return getattr(self, name)(*last, opts=opts)

    return run


_Group: Any = ProcessGroupHCCL
_Group.allgather_into_tensor_coalesced = _one_by_one(ALLGATHER)
_Group.reduce_scatter_tensor_coalesced = _one_by_one(REDUCE_SCATTER)


def _create(store: Any, rank: int, size: int, timeout: Any) -> ProcessGroupHCCL:
    return ProcessGroupHCCL(store, rank, size, timeout)


def install() -> None:
    """Register the backend for the device; once a process."""
    if not dist.is_available() or "HCCL" in dir(dist.Backend):
        return
    dist.Backend.register_backend("hccl", _create, devices=["hpu"])
