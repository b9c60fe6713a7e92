"""Where a tensor of the host was made, and what to write there."""

from __future__ import annotations

import ast
import linecache
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any

from torch import Tensor, nn
from torch.utils import _device

from devrun.probes import sites
from devrun.probes.origins import Host
from devrun.probes.sites import asking
from devrun.probes.sources import assigned
from devrun.python38 import unparsed
from devrun.tensors import tensors_in

_FACTORIES = frozenset(
    [
        *("tensor", "as_tensor", "asarray", "from_numpy", "scalar_tensor"),
        *("zeros", "ones", "empty", "full", "eye", "empty_strided"),
        *("arange", "range", "linspace", "logspace", "tril_indices", "triu_indices"),
        *("rand", "randn", "randint", "randperm", "normal"),
        *("bartlett_window", "blackman_window", "hamming_window", "hann_window"),
        "kaiser_window",
    ]
)


def birth_of(
    name: str, args: Any, kwargs: Any, on_device: Callable[[Any], bool]
) -> Host | None:
    """Where the call `name` was written, if it makes a tensor on the host."""
    if name not in _FACTORIES or _device.CURRENT_DEVICE is not None:
        return None
    if kwargs.get("device") is not None or kwargs.get("out") is not None:
        return None
    if any(isinstance(arg, Tensor) for arg in (*args[:2], *kwargs.values())):
        return None
    frame = asking()
    if frame is None:
        return None
    beside = (key for key, one in frame.f_locals.items() if on_device(one))
    device = f"{next(beside, 'x')}.device"
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    usual = f"give torch.{name} the argument device={device}"
    remedy = with_argument(line, name, device) or usual
    return Host(f"torch.{name}", sites.here(2), remedy)


def built_on_host() -> Host | None:
    """Where a tensor was made by its class, `torch.Tensor([1.0])`, on the host."""
    if _device.CURRENT_DEVICE is not None or asking() is None:
        return None
    remedy = "torch.tensor(..., device=x.device), of a tensor x beside it"
    return Host("torch.Tensor", sites.here(2), remedy)


@lru_cache(maxsize=None)
def with_argument(line: str, name: str, value: str) -> str | None:
    """`line` with `device=value` in its calls of `name`; None if it is not whole."""
    try:
        tree = ast.parse(line)
    except SyntaxError:
        return None
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    calls = [node for node in nodes if _name(node.func) == name]
    for call in calls:
        if name == "from_numpy":  # which has no such argument
            call.func = ast.parse("torch.as_tensor", mode="eval").body
        device = ast.parse(value, mode="eval").body
        call.keywords.append(ast.keyword("device", device))
    return unparsed(tree) if calls else None


def _name(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def tag_attributes(model: nn.Module, tag: Callable[[Tensor, Host], None]) -> None:
    """Tensors that `model.to(device)` may leave: in plain attributes, and in modules.

    Args:
        tag: is given each of them.
    """
    for module in model.modules():
        kind = type(module)
        for name, value in vars(module).items():
            if name.startswith("__") or name in ("_parameters", "_buffers", "_modules"):
                continue
            for tensor in _plain(value):
                site, line = assigned(kind, name)
                what = f"{kind.__name__}.{name}"
                remedy = "a buffer of each: self.register_buffer"
                if isinstance(value, Tensor):
                    remedy = _as_buffer(line, name)
                tag(tensor, Host(what, site, remedy))
            for tensor in _hidden(value):
                site, _ = assigned(kind, name)
                remedy = f"self.{name} = nn.ModuleList(...), which is moved with it"
                tag(tensor, Host(f"{kind.__name__}.{name}", site, remedy))
        for name, value in vars(kind).items():
            for tensor in _plain(value):
                remedy = f'self.register_buffer("{name}", ..., persistent=False)'
                site, _ = assigned(kind, name)
                tag(tensor, Host(f"{kind.__name__}.{name}", site, remedy))
        around = sys.modules.get(kind.__module__, types)
        for name, value in vars(around).items():
            for tensor in _plain(value):
                site, _ = assigned(around, name)
                remedy = f"{name}.to(x.device) where it is used, or a buffer of it"
                tag(tensor, Host(f"the global {name}", site, remedy))


def _plain(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return list(tensors_in(value)) if type(value) in (list, tuple, dict) else []


def _hidden(value: Any) -> list[Tensor]:
    """Of modules in a plain list, or in a dict, which no module knows of."""
    parts = value.values() if type(value) is dict else value
    if type(value) not in (list, tuple, dict):
        return []
    modules = [part for part in parts if isinstance(part, nn.Module)]
    return [one for each in modules for one in (*each.parameters(), *each.buffers())]


def _as_buffer(line: str, name: str) -> str:
    """The assignment `line` as the registration of a buffer."""
    value = "..."
    with suppress(SyntaxError, ValueError, AttributeError):
        (statement,) = ast.parse(line).body
        value = unparsed(statement.value) or value  # type: ignore[attr-defined]
    return f'self.register_buffer("{name}", {value}, persistent=False)'
