"""What tensors hold, as text that can be compared and kept."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor

from devrun.tensors import tensors_in


def digest(value: Any) -> str:
    """Of the shapes, types and bytes of all tensors in `value`."""
    found = hashlib.sha256()
    for tensor in tensors_in(value):
        host = tensor.detach().to("cpu")
        if type(host) is not Tensor:
            continue  # it has no value outside of the graph that was captured
        host = (host if host.layout is torch.strided else host.to_dense()).contiguous()
        found.update(str((tuple(host.shape), host.dtype)).encode())
        found.update(host.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
