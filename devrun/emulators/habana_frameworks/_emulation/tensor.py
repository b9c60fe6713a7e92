"""The tensor of the emulated device: it says hpu:0 and holds a tensor of the host."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from habana_frameworks._emulation.device import DEVICE
from habana_frameworks._emulation.memory import Allocation
from habana_frameworks._emulation.older_torch import keep_attributes
from habana_frameworks._emulation.torch_private import IN_PYTHON
from habana_frameworks._emulation.torch_private import is_traced as _tracing
from habana_frameworks._emulation.torch_private import make_wrapper as _make

_strided = torch.strided
_base_data: Any = Tensor.data
_SPARSE = {
    torch.sparse_coo: "Could not run 'aten::_sparse_coo_tensor_with_dims_and_tensors' "
    "with arguments from the 'SparseHPU' backend",
    **dict.fromkeys(
        (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc),
        "aten::sparse_compressed_tensor is not yet supported on HPU",
    ),
}
"""Layout that the device lacks -> what torch says of it there."""
TRACED = Allocation(0)
"""The memory of stand-ins that a compiler traces with."""


class HpuTensor(Tensor):
    """A tensor on hpu:0.

    `_host` is the data, `_memory` the device memory it counts for; `_graph` and
    `_value` are its place in the open lazy graph, `_layout` and `_site` what is told of
    it as an input of one: its shape and strides, the line it came from. Called, as in
    `type(parameter)(data)`, it makes parameters, on the device that `data` is on.
    """

    _host: Tensor
    _memory: Allocation
    _graph: int = 0
    _value: int
    _layout: Any = None
    _site: Any = None
    fetch: Callable[..., Tensor]

    # as of parameters: torch functions take it for a plain tensor
    __torch_function__: Any = torch.nn.Parameter.__torch_function__

    @staticmethod
    def __new__(cls, data: Any, requires_grad: bool = True) -> Any:
        return torch.nn.Parameter(torch.as_tensor(data), requires_grad)

    def __init__(self, data: Any = None, requires_grad: bool = True) -> None:
        super().__init__()

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """For compilers, which trace through a stand-in for the host tensor."""
        return ["_host"], None

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, Tensor], context: None, size: Any, stride: Any
    ) -> HpuTensor:
        return wrap(inner["_host"])

    @property
    def is_hpu(self) -> bool:
        """Always True."""
        return True

    @property
    def bytes_on_host(self) -> int:
        """Those of its elements."""
        return self._host.numel() * self._host.element_size()

    def data_ptr(self) -> int:
        """The address of the data; that of the host's copy here."""
        return self._host.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The storage of the host's copy, which tensors that share memory share.

        While a compiler traces, the tensor's own: it tells the two apart by storage,
        and would empty the copy of an empty one, which this device has no hook for.
        """
        if _tracing():
            own = super().untyped_storage()
            return own if own.nbytes() else torch.UntypedStorage(1)
        return self._host.untyped_storage()

    def storage(self) -> Any:
        """The typed storage of the host's copy."""
        return self._host.storage()

    def is_pinned(self, device: Any = None) -> bool:
        """Device memory is never pinned."""
        return False

    def record_stream(self, stream: Any) -> None:
        """Nothing to keep: work on the emulated device is done at once."""

    def tolist(self) -> Any:
        """The values as Python numbers, after one transfer to the host."""
        return fetch(self, "tolist").tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refused unless forced, as on every device."""
        if force:
            return fetch(self, "numpy").numpy()
        raise TypeError(
            "can't convert hpu:0 device type tensor to numpy. Use Tensor.cpu() to "
            "copy the tensor to host memory first."
        )

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise BufferError("a tensor of the device hpu cannot be exported by DLPack")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if is_traced(self):
            return f"tensor(..., device='{DEVICE}', size={tuple(self.shape)})"
        text = repr(fetch(self, "print"))
        tail = f", device='{DEVICE}'"
        if self.grad_fn is not None:
            tail += f", grad_fn=<{type(self.grad_fn).__name__}>"
        elif self.requires_grad:
            tail += ", requires_grad=True"
        text = f"{text[:-1]}{tail})"
        if isinstance(self, torch.nn.Parameter):
            return f"Parameter containing:\n{text}"
        return text

    def __format__(self, spec: str) -> str:
        if self.dim() == 0:
            return self.item().__format__(spec)
        return object.__format__(self, spec)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support "
                "the deepcopy protocol at the moment."
            )
        made: Tensor = wrap(self._host.clone()).requires_grad_(self.requires_grad)
        memo[id(self)] = made
        for name, value in self.__dict__.items():
            if name not in _OWN:
                made.__dict__[name] = copy.deepcopy(value, memo)
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A file never depends on the device: what is stored is a tensor of the host.
        host = fetch(self, "pickle").requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            host = torch.nn.Parameter(host, self.requires_grad)
        return host.__reduce_ex__(protocol)


_OWN = frozenset({"_host", "_memory", "_graph", "_value", "_layout", "_site"})


def bind(run: Callable[..., Any], fetch: Callable[..., Tensor]) -> None:
    """Say what runs operators, and what copies a tensor to the host for a cause."""
    HpuTensor.__torch_dispatch__ = staticmethod(run)
    HpuTensor.fetch = staticmethod(fetch)
    if not IN_PYTHON:
        keep_attributes(HpuTensor)


def wrap(host: Tensor, memory: Allocation | None = None) -> HpuTensor:
    """A device tensor over `host`, in new device memory unless `memory` is given."""
    made: HpuTensor
    if type(host) is not Tensor or host.layout is not _strided:
        return _wrap_special(host, memory)
    if host.is_contiguous() and not host.storage_offset():  # the fastest way
        made = _make(HpuTensor, host.shape, dtype=host.dtype, device=DEVICE)
    else:
        made = _make(
            HpuTensor,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
        )
    made._host = host
    made._memory = memory or Allocation(host.untyped_storage().nbytes())
    return made


def _wrap_special(host: Tensor, memory: Allocation | None) -> HpuTensor:
    """`wrap` of a parameter, or of a stand-in that a compiler made."""
    if host.layout in _SPARSE:
        text = f"{_SPARSE[host.layout]}: a tensor of layout {host.layout}"
        raise NotImplementedError(text)
    options: dict[str, Any] = {"layout": host.layout}
    strided = host.layout is _strided
    if strided:
        options = {"strides": host.stride(), "storage_offset": host.storage_offset()}
    made: HpuTensor = _make(
        HpuTensor, host.shape, dtype=host.dtype, device=DEVICE, **options
    )
    if type(host) is not Tensor:
        memory = TRACED
    elif memory is None:
        memory = Allocation(host.untyped_storage().nbytes() if strided else 0)
    made._host = host
    made._memory = memory
    return made


def fetch(tensor: HpuTensor, cause: str) -> Tensor:
    """A host copy, counted as one host sync named `cause`."""
    return HpuTensor.fetch(tensor, cause)


def is_traced(tensor: HpuTensor) -> bool:
    """Whether it is a stand-in that a compiler made, without data."""
    return type(tensor.__dict__.get("_host")) is not Tensor


def refresh(tensor: HpuTensor) -> None:
    """Take over shape, strides and offset after the host tensor changed its own."""
    host = tensor._host
    same = tensor.shape == host.shape and tensor.stride() == host.stride()
    if same and tensor.storage_offset() == host.storage_offset():
        return
    _base_data.__set__(tensor, wrap(host, tensor._memory))
    tensor._layout = None


def adopt(tensor: HpuTensor, other: HpuTensor) -> None:
    """What `tensor.data = other` does between two tensors of the device."""
    _base_data.__set__(tensor, other)
    tensor._host, tensor._memory, tensor._graph = other._host, other._memory, 0
    tensor._layout = None
