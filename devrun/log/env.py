"""`collect_env`: the versions a bug report needs."""

from __future__ import annotations

import os
import platform
import sys

import devrun


def collect_env() -> dict[str, str]:
    """Facts about this process, by name; no device is probed."""
    import numpy
    import torch

    return {
        "sys.platform": sys.platform,
        "OS": platform.platform(),
        "Python": " ".join(sys.version.split()),
        "PyTorch": torch.__version__,
        "NumPy": numpy.__version__,
        "CPU threads": f"{torch.get_num_threads()} of {os.cpu_count()}",
    }


def brief() -> str:
    """The versions that results depend on most, in one line."""
    facts = collect_env()
    names = ("PyTorch", "NumPy", "CPU threads")
    return ", ".join(
        [
            f"devrun {devrun.__version__}",
            f"Python {platform.python_version()}",
            *(f"{name} {facts[name]}" for name in names),
            facts["OS"],
        ]
    )
