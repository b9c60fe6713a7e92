"""What this torch has: the one place that asks. devrun runs on 2.0.1 and later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from devrun.errors import UnsupportedFeatureError

VERSION = torch.__version__.split("+")[0]


def lacks(release: str) -> bool:
    """Whether this torch is older than `release`, such as "2.6"."""
    here = [int(part) for part in VERSION.split(".")[:2]]
    return here < [int(part) for part in release.split(".")]


def needs(release: str, what: str, key: str | None = None) -> None:
    """Refuse `what`, which the config's `key` asks for, in a torch before `release`.

    Raises:
        UnsupportedFeatureError: naming both and the torch that is here.
    """
    if lacks(release):
        raise UnsupportedFeatureError(
            f"{what} needs torch {release} or later, this is torch {torch.__version__}",
            key=key,
        )


def dtypes_in(named: Mapping[str, str]) -> dict[torch.dtype, str]:
    """The table `named` by type, without the types that only a newer torch has."""
    return {getattr(torch, k): v for k, v in named.items() if hasattr(torch, k)}


def cpu_capability() -> str:
    """The vector instructions that torch uses, such as `AVX2`; unknown before 2.1."""
    return "unknown" if lacks("2.1") else torch.backends.cpu.get_cpu_capability()


def is_compiling() -> bool:
    """Whether a compiler follows this code; before 2.1 none that is of use here."""
    return not lacks("2.1") and torch.compiler.is_compiling()


def distributed_error() -> type[Exception]:
    """What is raised where processes do not meet; of no type of its own in 2.0."""
    found: type[Exception] = getattr(torch.distributed, "DistError", RuntimeError)
    return found


if TYPE_CHECKING or not lacks("2.3"):
    from torch.amp import GradScaler as GradScaler
else:

    class GradScaler(torch.cuda.amp.GradScaler):
        """With the device named first, as of torch 2.3; CUDA's alone before that."""

        def __init__(self, device: str = "cuda", **kwargs: Any) -> None:
            if device != "cuda" and kwargs.get("enabled", True):
                needs("2.3", f"loss scaling (fp16) on device {device}", "precision")
            super().__init__(**kwargs)
