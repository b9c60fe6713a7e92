"""GPU Migration: a program written for `torch.cuda` runs on the device `hpu`.

Importing it, or PT_HPU_GPU_MIGRATION=1, maps calls of `torch.cuda`, devices named cuda
in arguments, NCCL and torch.compile's default backend. What has no meaning on a Gaudi
does nothing. GPU_MIGRATION_LOG_LEVEL writes down each call that was mapped: 1 also on
the console, 2 and 3 to the file only, 3 without the calls that torch makes itself.
"""

from __future__ import annotations

from habana_frameworks._emulation.patches import replace
from habana_frameworks.torch.gpu_migration import arguments, cuda

_done: list[bool] = []

if not _done:
    _done.append(True)
    cuda.install(replace)
    arguments.install(replace)
