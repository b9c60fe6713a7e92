"""What CPUs and GPUs alone have: sparse buffers, large whole numbers, a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from devrun.probes import sites
from devrun.probes.finding import Finding
from devrun.probes.notebook import Notebook
from devrun.probes.probe import Probe
from devrun.probes.sites import maker_of
from devrun.tensors import tensors_in

_INDUCTOR = "inductor"
_LARGEST = 2**31 - 1
_NARROW = ("", "lazy")
"""Modes in which a device has whole numbers of 32 bits alone."""
_WIDE = (
    "the device keeps 32 bits of whole numbers: larger ones wrap or are refused",
    "smaller numbers, such as a remainder, from the data set or its collate_fn",
)
_COMPILES = (
    "it compiles for CPUs and GPUs: this device has a compiler of its own",
    "leave it out: devrun brings the compiler of the device",
)


class GPUOnly(Probe):
    """Notes it where it is asked for; modules hold dense buffers instead."""

    @contextmanager
    def throughout(self) -> Iterator[None]:
        sparse = gpu_only(self.note, self.request.device)
        narrow = self.request.mode in _NARROW
        with sparse, _smaller(self.note) if narrow else nullcontext():
            yield


def _smaller(note: Notebook) -> AbstractContextManager[Any]:
    """Within, whole numbers that a loader gives and the device has not are others."""
    kind = _MapDatasetFetcher
    given: Any = kind.fetch

    def fetch(fetcher: Any, index: Any) -> Any:
        batch = given(fetcher, index)
        for tensor in tensors_in(batch):
            whole = tensor.dtype is torch.int64 and tensor.numel()
            if whole and tensor.abs().max() > _LARGEST:
                site = maker_of(fetcher)
                note.found(Finding("differs", "int64", "a batch", *_WIDE, site))
                tensor.remainder_(_LARGEST)
        return batch

    return patch.object(kind, "fetch", fetch)


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
