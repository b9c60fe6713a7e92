"""What one rehearsal is asked for, as its probes see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Grants:
    """What the user lets the config do, as the command line's flags say it."""

    file: str
    """The config's, beside which modules are looked up."""
    factories: tuple[str, ...] = ()
    everything: bool = False
    imports: tuple[str, ...] = ()
    downloads: bool = False
    mmcv: bool = False


@dataclass(frozen=True)
class Request:
    """One rehearsal: a config on a device, in one of its modes."""

    cfg: Any
    grants: Grants
    device: str
    """The device that the findings are about."""
    section: Any
    """What the config's `device` is to be for it."""
    emulated: bool = False
    mode: str = ""
    steps: int = 3
    samples: int = 8
    """Samples of a batch at the most."""
    memory: int | None = None
    """Bytes that the device has; None where nobody said it."""
    torch_device: str = "cpu"
    """On which torch has the tensors."""
    resumes: bool = True
    """Whether it goes on from its save too: once for each device."""
    first: bool = False
    """Whether it also looks at what is the same on every device."""
