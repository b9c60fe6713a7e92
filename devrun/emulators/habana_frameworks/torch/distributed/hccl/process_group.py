"""A process group on device tensors that lets gloo carry the host's."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from habana_frameworks._emulation.capture import CAPTURE
from habana_frameworks._emulation.lazy import flush
from habana_frameworks._emulation.recorder import RECORDER
from habana_frameworks._emulation.tensor import HpuTensor

SUPPORTED = (
    dist.ReduceOp.SUM,
    dist.ReduceOp.MIN,
    dist.ReduceOp.MAX,
    dist.ReduceOp.PRODUCT,
)


def _hosts(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_hosts(item) for item in value]
    return value._host if type(value) is HpuTensor else value


def _mark(value: Any) -> None:
    """What the host wrote is no input the open graph knows."""
    if isinstance(value, list | tuple):
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
_AllgatherOptions: Any = dist.distributed_c10d.AllgatherOptions


class ProcessGroupHCCL(_ProcessGroup):
    """Collectives flush the lazy graph, refuse averages, and end in gloo."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """hccl."""
        return "hccl"

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

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce over all ranks, in place."""
        opts = opts or dist.AllreduceOptions()
        _check_reduce(opts)
        return self._run("allreduce", (tensors,), opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any) -> Any:
        """As `allreduce`, of several tensors."""
        _check_reduce(opts)
        return self._run("allreduce_coalesced", (tensors,), opts)

    def reduce(self, tensors: Any, opts: Any) -> Any:
        """Reduce to one rank."""
        _check_reduce(opts)
        return self._run("reduce", (tensors,), opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """From one rank to all."""
        return self._run("broadcast", (tensors,), opts or dist.BroadcastOptions())

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Every rank's tensor on every rank."""
        opts = opts or _AllgatherOptions()
        return self._run("allgather", (outputs, inputs), opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """As `allgather`, of several tensors."""
        opts = opts or _AllgatherOptions()
        return self._run("allgather_coalesced", (outputs, inputs), opts)

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:
        opts = opts or _AllgatherOptions()
        return self._run("_allgather_base", (output, input), opts)

    all_gather_single = _allgather_base

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """Every rank's tensor on one rank."""
        return self._run("gather", (outputs, inputs), opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """One rank's tensors, one to each."""
        return self._run("scatter", (outputs, inputs), opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """Reduce, and keep a share."""
        _check_reduce(opts)
        return self._run("reduce_scatter", (outputs, inputs), opts)

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any) -> Any:
        _check_reduce(opts)
        return self._run("_reduce_scatter_base", (output, input), opts)

    reduce_scatter_single = _reduce_scatter_base

    def alltoall_base(
        self, output: Any, input: Any, to: Any, of: Any, opts: Any
    ) -> Any:
        """Every rank sends a share to every rank."""
        return self._run("alltoall_base", (output, input), to, of, opts)

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """As `alltoall_base`, with lists."""
        return self._run("alltoall", (outputs, inputs), opts)

    def send(self, tensors: Any, rank: int, tag: int) -> Any:
        """To one rank."""
        return self._run("send", (tensors,), rank, tag)

    def recv(self, tensors: Any, rank: int, tag: int) -> Any:
        """From one rank."""
        return self._run("recv", (tensors,), rank, tag)

    def barrier(self, opts: Any = None) -> Any:
        """Wait for all ranks."""
        return self._run("barrier", (), opts or dist.BarrierOptions())


def _create(store: Any, rank: int, size: int, timeout: Any) -> ProcessGroupHCCL:
    return ProcessGroupHCCL(store, rank, size, timeout)


def install() -> None:
    """Register the backend for the device; once a process."""
    if not dist.is_available() or "HCCL" in dir(dist.Backend):
        return
    dist.Backend.register_backend("hccl", _create, devices=["hpu"])
