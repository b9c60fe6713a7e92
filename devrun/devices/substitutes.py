"""What stands for CUDA on another device, in code that asks for it by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

CUDA = "cuda"
_REMEDIES = {
    "cuda": "leave it out: devrun moves the model and each batch",
    "to": "x.to(y.device) of a tensor y beside it, or leave it out: devrun moves "
    "the model and each batch",
    "autocast": "leave it out, and optimizer_config: {precision: bf16} in the config",
    "GradScaler": "leave it out, and optimizer_config: {precision: fp16} in the config",
}
_FACTORY = "device=x.device, of a tensor x beside it"
_MODULE = "leave it out, or guard it: if torch.cuda.is_available()"
_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("synchronize", "set_device", "reset_peak_memory_stats")),
    **dict.fromkeys(("init", "set_rng_state", "get_device_properties")),
    "current_device": 0,
    "get_device_name": "",
    "get_device_capability": (0, 0),
    "mem_get_info": (0, 0),
}
"""Functions of torch.cuda that fail elsewhere -> what stands for their result."""


class Substitutes(TorchFunctionMode):
    """What is asked of `cuda` is done on `device`; each call is told to `note`.

    Args:
        device: as torch names it, on which a rehearsal's tensors are.
        note: given the call, such as `.cuda()`, and the remedy.
    """

    def __init__(self, device: str, note: Callable[[str, str], None]) -> None:
        super().__init__()
        self._device, self._tell = device, note
        self._stack = ExitStack()

    def __enter__(self) -> Any:
        for name, value in _NOTHING.items():
            self._replace(torch.cuda, name, self._silent(name, value))
        for name in ("stream", "current_stream", "default_stream"):
            self._replace(torch.cuda, name, self._silent(name, _Idle()))
        for name in ("Stream", "Event", "device"):  # which annotations name: classes
            kind = type(name, (_Idle,), {"__init__": self._silent(name, None)})
            self._replace(torch.cuda, name, kind)
        autocast, scaler = torch.amp.autocast_mode.autocast, torch.amp.GradScaler
        for kind, name in ((autocast, "autocast"), (scaler, "GradScaler")):
            self._replace(kind, "__init__", self._begun(kind.__init__, name))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "cuda" and getattr(func, "__objclass__", None) is not None:
            self._tell(".cuda()", _REMEDIES["cuda"])
            return args[0].to(self._device)
        named = kwargs.get("device")
        if _is_cuda(named):
            self._tell(f"{name}(device='cuda')", _REMEDIES.get(name, _FACTORY))
            kwargs = {**kwargs, "device": self._device}
        elif name == "to" and len(args) > 1 and _is_cuda(args[1]):
            self._tell(".to('cuda')", _REMEDIES["to"])
            args = (args[0], self._device, *args[2:])
        return func(*args, **kwargs)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._stack.enter_context(patch.object(owner, name, value))

    def _silent(self, name: str, value: Any) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            self._tell(f"torch.cuda.{name}", _MODULE)
            return value

        return call

    def _begun(self, init: Any, name: str) -> Callable[..., None]:
        def begin(self_: Any, *args: Any, **kwargs: Any) -> None:
            key = "device" if name == "GradScaler" else "device_type"
            given = args[0] if args else kwargs.get(key, "cuda")
            if _is_cuda(given):
                self._tell(f"{name}('cuda')", _REMEDIES[name])
                kwargs.pop(key, None)
                args = (self._device, *args[1:])
            init(self_, *args, **kwargs)

        return begin


class _Idle:
    """A stream or an event on which nothing happens."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: nullcontext()

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *_: Any) -> None: ...


def _is_cuda(value: Any) -> bool:
    named = isinstance(value, (str, torch.device))
    return named and str(value).partition(":")[0] == "cuda"
