"""`OwnCompile`: what the user's own code gives to torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from devrun.probes import sites
from devrun.probes.finding import Finding
from devrun.probes.probe import Probe

_DEFAULT = "inductor"
_SAYS = (
    "it compiles for CPUs and GPUs: this device has a compiler of its own",
    "leave it out: devrun brings the compiler of the device",
)


class OwnCompile(Probe):
    """Notes torch's default compiler, which the device has not."""

    @contextmanager
    def throughout(self) -> Iterator[None]:
        given = torch.compile

        def compile(*args: Any, **kwargs: Any) -> Any:
            backend, site = kwargs.get("backend", _DEFAULT), sites.line_asking()
            if backend == _DEFAULT and site and not sites.is_library(site):
                found = Finding("breaks", "torch.compile", backend, *_SAYS, site)
                self.note.found(found)
            return given(*args, **kwargs)

        with patch.object(torch, "compile", compile):
            yield
