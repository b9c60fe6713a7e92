"""Tensors that a call makes on the host, and how it would make them on the device."""

from __future__ import annotations

import ast
import linecache
from typing import Any

from torch import Tensor
from torch.utils import _device

from devrun.devices.cuda.probes.frames import asking
from devrun.probes import sites
from devrun.probes.origins import Host, Origins
from devrun.python38 import unparsed

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


def birth_of(name: str, args: Any, kwargs: Any, origins: Origins) -> Host | None:
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
    beside = (key for key, one in frame.f_locals.items() if origins.on_device(one))
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


def with_argument(line: str, name: str, value: str) -> str | None:
    """`line` with `device=value` in its call of `name`; None if it is not whole."""
    try:
        tree = ast.parse(line)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name(node.func) == name:
            keyword = ast.keyword("device", ast.parse(value, mode="eval").body)
            node.keywords.append(keyword)
            return unparsed(tree)
    return None


def _name(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))
