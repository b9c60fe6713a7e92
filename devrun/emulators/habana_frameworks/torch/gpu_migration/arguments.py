"""Arguments that name a GPU, NCCL or its compiler, wherever torch takes them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from habana_frameworks._emulation.pinning import FACTORIES, METHODS
from habana_frameworks._emulation.settings import flag
from habana_frameworks._emulation.tensor import HpuTensor
from habana_frameworks.torch.gpu_migration.log import MATCH, log

FURTHER = (
    *("as_tensor", "asarray", "scalar_tensor", "tril_indices", "triu_indices"),
    *("hann_window", "hamming_window", "blackman_window", "bartlett_window"),
    *("sparse_coo_tensor", "sparse_csr_tensor", "set_default_device"),
)
"""Functions with a device among their arguments, besides the factories."""
FP16_TO_BF16 = flag("PT_HPU_CONVERT_FP16_TO_BF16_FOR_MIGRATION")


def on_device(value: Any) -> Any:
    """`value`, or the device hpu where it names a GPU; bf16 for fp16 if asked for."""
    if isinstance(value, str):
        return "hpu" if value.partition(":")[0] == "cuda" else value
    if isinstance(value, torch.device):
        return torch.device("hpu") if value.type == "cuda" else value
    if value is torch.float16 and FP16_TO_BF16:
        return torch.bfloat16
    return value


def mapped(original: Callable[..., Any], name: str, first: int = 0) -> Any:
    """`original` with its arguments from the `first` on put through `on_device`."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        new = (*args[:first], *[on_device(a) for a in args[first:]])
        options = {k: on_device(v) for k, v in kwargs.items()}
        changed = any(a is not b for a, b in zip(args, new))
        if changed or any(options[k] is not v for k, v in kwargs.items()):
            log(MATCH, name, args[first:], kwargs, f"{name} on hpu")
        return original(*new, **options)

    return call


def _to(original: Any, name: str) -> Any:
    """`to`, where a number is a GPU too."""
    convert = mapped(original, name, first=1)

    @functools.wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            args = ("cuda", *args[1:])
        return convert(self, *args, **kwargs)

    return to


def _cuda(self: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`tensor.cuda()` and `module.cuda()`."""
    return self.to("cuda", **{k: v for k, v in kwargs.items() if k == "non_blocking"})


def _half(original: Any) -> Any:
    @functools.wraps(original)
    def half(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.bfloat16() if FP16_TO_BF16 else original(self, *args, **kwargs)

    return half


def _autocast(original: Any) -> Any:
    @functools.wraps(original)
    def start(self: Any, device_type: str, dtype: Any = None, *a: Any, **k: Any) -> Any:
        if device_type == "cuda":
            given = (device_type, dtype)
            log(MATCH, "torch.autocast.__init__", given, k, "device_type=hpu, bf16")
            device_type, dtype = "hpu", None if dtype is torch.float16 else dtype
        return original(self, device_type, dtype, *a, **k)

    return start


def _scaler(original: Any) -> Any:
    @functools.wraps(original)
    def start(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        if device == "cuda":  # bf16 needs no scaling
            log(MATCH, "GradScaler.__init__", args, kwargs, "enabled=False")
            original(self, "cpu", enabled=False)
        else:
            original(self, device, *args, **kwargs)

    return start


def _parallel(original: Any) -> Any:
    name = "DistributedDataParallel.__init__"

    @functools.wraps(original)
    def start(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        for place, key in enumerate(("device_ids", "output_device")):
            if len(args) > place or key in kwargs:
                log(MATCH, name, args, kwargs, "device_ids and output_device None")
                kwargs.pop(key, None)
        original(self, module, None, None, *args[2:], **kwargs)

    return start


def _group(original: Any, name: str) -> Any:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        new = [_backend(a) for a in args]
        options = {k: _backend(v) for k, v in kwargs.items() if k != "device_id"}
        log(MATCH, name, args, kwargs, "backend hccl in place of nccl")
        return original(*new, **options)

    return make


def _backend(value: Any) -> Any:
    if isinstance(value, str) and "nccl" in value:
        return value.replace("cuda:nccl", "hpu:hccl").replace("nccl", "hccl")
    return value


def _backend_back(original: Any) -> Any:
    @functools.wraps(original)
    def get_backend(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs).replace("hccl", "nccl")

    return get_backend


def _compile(original: Any) -> Any:
    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("backend", "inductor") == "inductor":
            log(MATCH, "torch.compile", (), kwargs, "backend hpu_backend")
            kwargs["backend"] = "hpu_backend"
            kwargs.pop("mode", None)  # of inductor's
        return original(*args, **kwargs)

    return compile


def _is_cuda(self: Tensor) -> bool:
    return True


def install(replace: Any) -> None:
    """Put the mapping in front of all of them."""
    for name in (*FACTORIES, *FURTHER):
        replace(torch, name, mapped(getattr(torch, name), f"torch.{name}"))
    for name in METHODS:
        method = mapped(getattr(Tensor, name), f"torch.Tensor.{name}", first=1)
        replace(Tensor, name, method)
    replace(torch, "load", mapped(torch.load, "torch.load", first=1))
    for owner, name in ((Tensor, "torch.Tensor"), (nn.Module, "torch.nn.Module")):
        replace(owner, "to", _to(owner.to, f"{name}.to"))
        replace(owner, "cuda", _cuda)
        replace(owner, "half", _half(owner.half))
    replace(HpuTensor, "is_cuda", property(_is_cuda))
    replace(torch.autocast, "__init__", _autocast(torch.autocast.__init__))
    replace(torch.amp.GradScaler, "__init__", _scaler(torch.amp.GradScaler.__init__))
    ddp = DistributedDataParallel
    replace(ddp, "__init__", _parallel(ddp.__init__))
    loader = mapped(DataLoader.__init__, "DataLoader.__init__", first=1)
    replace(DataLoader, "__init__", loader)
    replace(torch, "compile", _compile(torch.compile))
    for name in ("init_process_group", "new_group"):
        replace(dist, name, _group(getattr(dist, name), f"torch.distributed.{name}"))
    replace(dist, "get_backend", _backend_back(dist.get_backend))
    replace(dist, "is_nccl_available", lambda: True)
