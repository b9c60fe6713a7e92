"""What CPUs and GPUs alone have: sparse buffers, and torch's own compiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from devrun.probes import sites
from devrun.probes.finding import Finding
from devrun.probes.notebook import Notebook
from devrun.probes.probe import Probe

_INDUCTOR = "inductor"
_COMPILES = (
    "it compiles for CPUs and GPUs: this device has a compiler of its own",
    "leave it out: devrun brings the compiler of the device",
)


class GPUOnly(Probe):
    """Notes it where it is asked for; modules hold dense buffers instead."""

    @contextmanager
    def throughout(self) -> Iterator[None]:
        with gpu_only(self.note, self.request.device):
            yield


@contextmanager
def gpu_only(note: Notebook, device: str) -> Iterator[None]:
    """Within, every sparse buffer is noted and made dense, and a compiler noted."""
    given: Any = nn.Module.register_buffer
    compiler: Any = torch.compile

    def register(module: Any, name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, Tensor) and tensor.layout is not torch.strided:
            why = f"{device} has no tensors of the layout {tensor.layout}"
            remedy = f'self.register_buffer("{name}", tensor.to_dense())'
            note.found(Finding("breaks", "sparse", name, why, remedy, sites.here(2)))
            tensor = tensor.to_dense()
        return given(module, name, tensor, *args, **kwargs)

    def compile(*args: Any, **kwargs: Any) -> Any:
        name, site = kwargs.get("backend", _INDUCTOR), sites.line_asking()
        if name == _INDUCTOR and site and not sites.is_library(site):
            note.found(Finding("breaks", "torch.compile", name, *_COMPILES, site))
        return compiler(*args, **kwargs)

    sparse = patch.object(nn.Module, "register_buffer", register)
    with sparse, patch.object(torch, "compile", compile):
        yield
