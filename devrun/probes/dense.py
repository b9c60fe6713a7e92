"""Buffers that are sparse, which no other device than CPUs and GPUs holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from devrun.probes.finding import Finding
from devrun.probes.notebook import Notebook
from devrun.probes.probe import Probe
from devrun.probes.sites import here


class DenseBuffers(Probe):
    """Notes them where they are registered, and has the module hold dense ones."""

    @contextmanager
    def throughout(self) -> Iterator[None]:
        with dense_buffers(self.note, self.request.device):
            yield


@contextmanager
def dense_buffers(note: Notebook, device: str) -> Iterator[None]:
    """Within, every sparse buffer is noted and made dense."""
    given: Any = nn.Module.register_buffer

    def register(module: Any, name: str, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, Tensor) and tensor.layout is not torch.strided:
            why = f"{device} has no tensors of the layout {tensor.layout}"
            remedy = f'self.register_buffer("{name}", tensor.to_dense())'
            note.found(Finding("breaks", "sparse", name, why, remedy, here(2)))
            tensor = tensor.to_dense()
        return given(module, name, tensor, *args, **kwargs)

    with patch.object(nn.Module, "register_buffer", register):
        yield
