"""Random numbers where processes share samples, but not all activations.

Processes that divide matrices draw alike, so that dropout leaves out the same units of
what all have. Between a column-wise matrix and the row-wise one after it each has other
units, and in parts of a sequence other positions: there each draws from a stream of its
own, which begins where the common one tells it to, so that a recomputation draws the
same again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class StreamsApart:
    """Switches streams as modules are passed.

    Args:
        place: of this process among those that divide a matrix.
        device: has `rng_state` and `set_rng_state`; None where the host's is all.
    """

    def __init__(self, place: int, device: Any) -> None:
        self._place, self._device = place, device
        self._common: Any = None
        self._owner: nn.Module | None = None
        self._passed: set[nn.Module] = set()

    def watch(self, model: nn.Module, styles: Mapping[str, str]) -> None:
        """Follow the modules of `model` that `styles` divides."""
        for name, style in styles.items():
            module = model.get_submodule(name)
            owner = model.get_submodule(name.rpartition(".")[0])
            if style == "rowwise":
                module.register_forward_pre_hook(self.leave)
            else:
                module.register_forward_hook(self._entering(owner))

    def _entering(self, owner: nn.Module) -> Any:
        def enter(module: nn.Module, _: Any, __: Any) -> None:
            inside = self._common is not None and owner is self._owner
            # a recomputation may end before it leaves: what is left then is no state
            if inside and module not in self._passed:
                self._passed.add(module)
                return
            self.enter(module)
            self._owner, self._passed = owner, {module}

        return enter

    def enter(self, module: nn.Module) -> None:
        """Draw from a stream of this process's own from here on, if `module` trains."""
        self._common = None
        if not module.training:
            return
        seed = int(torch.randint(2**62, (1,)).item())
        states = None if self._device is None else self._device.rng_state()
        self._common = (torch.get_rng_state(), states)
        torch.manual_seed(seed + self._place)

    def leave(self, *_: Any) -> None:
        """Draw as the others do again."""
        if self._common is None:
            return
        (host, device), self._common = self._common, None
        torch.set_rng_state(host)
        if device is not None:
            self._device.set_rng_state(device)
