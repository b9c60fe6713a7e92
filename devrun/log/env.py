"""`collect_env`: the versions a bug report needs."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Mapping

import devrun


def collect_env(
    devices: Mapping[str, Iterable[str] | str] | None = None,
) -> dict[str, str]:
    """Facts about this process, by name; nothing is probed.

    Args:
        devices: adapter name -> its devices, or why it has none; taken as given.
    """
    import numpy
    import torch

    facts = {
        "sys.platform": sys.platform,
        "OS": platform.platform(),
        "Python": " ".join(sys.version.split()),
        "PyTorch": torch.__version__,
        "NumPy": numpy.__version__,
        "CPU threads": f"{torch.get_num_threads()} of {os.cpu_count()}",
    }
    for name, listed in (devices or {}).items():
        shown = listed if isinstance(listed, str) else ", ".join(listed)
        facts[f"Device {name}"] = shown or "none"
    return facts


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


def env_text(devices: Mapping[str, Iterable[str] | str] | None = None) -> str:
    """`collect_env` as lines of `name: value`."""
    return "\n".join(f"{name}: {value}" for name, value in collect_env(devices).items())
