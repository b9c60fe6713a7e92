"""A look-alike of Intel Gaudi's `habana_frameworks` on CPU torch.

Training code written for a Gaudi runs on it unmodified and learns what would have
been slow there: it counts, and never claims anything about speed. Nothing here is
Intel's code; the public names follow Intel's so that `import habana_frameworks`
finds this package when its parent folder is on `sys.path`.

Emulated: the device `hpu` (tensors, autograd, modules, optimizers, random streams,
memory statistics with a settable limit), the lazy graph with its cache and every
cause of a flush, eager launch counts, CPU fallbacks by the bridge's 1.19 operator
list, the metrics and event API, HPU graphs, autocast, the fused optimizers, clipping
and moving average, HCCL over gloo, `hpu_backend` of `torch.compile` with the
launches and compilations of its regions, and GPU Migration.

Not emulated: time, the numbers of Gaudi's kernels (arithmetic is the CPU's), float8,
refusals and crashes of the graph compiler, fragmentation of the device memory, the
profiler's device rows, FSDP and DeepSpeed.
"""

from __future__ import annotations

import importlib
import os

__version__ = "1.19.0"
__emulated__ = True


def __autoload() -> None:
    """What `import torch` calls: loads the device in eager mode, as the SDK does.

    PT_HPU_AUTOLOAD=0 or 1 decides it for both modes.
    """
    lazy = os.environ.get("PT_HPU_LAZY_MODE", "1") != "0"
    if os.environ.get("PT_HPU_AUTOLOAD", "0" if lazy else "1") == "1":
        importlib.import_module("habana_frameworks.torch")
