"""`gradient_checkpointing`: activations are computed again in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174), by
`torch.utils.checkpoint`, without reentrant autograd.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from devrun.errors import ConfigError
from devrun.models.blocks import blocks_of
from devrun.models.names import matching_modules
from devrun.torch_features import is_compiling, lacks, needs

KEY = "gradient_checkpointing"


class DeviceRng(Protocol):
    """The random streams of a device, as an adapter has them."""

    def rng_state(self) -> dict[str, Any]: ...
    def set_rng_state(self, state: Mapping[str, Any]) -> None: ...


def checkpoint_blocks(
    model: nn.Module, which: Any, rng: DeviceRng | None = None
) -> str:
    """Keep of some modules only the inputs until the backward pass; says of which.

    Random streams are put back for the second computation, and batch norms count each
    batch once: the losses and weights have the same bits as without.

    Args:
        which: True for the model's blocks, by `gradient_checkpointing_enable` where it
            has that; or patterns of module names.
        rng: of a device whose streams torch does not put back by itself.

    Raises:
        ConfigError: there are no such modules.
    """
    switch = getattr(model, "supports_gradient_checkpointing", False)
    if which is True and switch and rng is None:
        old = getattr(model, "gradient_checkpointing_enable", None)
        enable: Any = getattr(model, "activation_checkpointing_enable", old)
        enable({"use_reentrant": False})
        return f"the blocks of {type(model).__name__}, by its own switch"
    if which is True:
        found = blocks_of(model)
        if not found:
            raise ConfigError.of(
                KEY,
                f"finds no numbered blocks, such as blocks.0 and blocks.1, in "
                f"{type(model).__name__}: give patterns of module names",
            )
    else:
        found = matching_modules(KEY, which, model)
    needs("2.1", "computing modules again", KEY)
    for _, module in found:
        module.forward = _Recomputed(module, rng)
    names = [name for name, _ in found]
    more = f" to {names[-1]}" if len(names) > 1 else ""
    return f"{len(names)} modules, {names[0]}{more}"


class _Recomputed:
    """The forward of `module`, whose activations are not kept."""

    def __init__(self, module: nn.Module, rng: DeviceRng | None) -> None:
        self.module, self.rng = module, rng

    def __deepcopy__(self, memo: dict[int, Any]) -> _Recomputed:
        return _Recomputed(copy.deepcopy(self.module, memo), self.rng)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return type(self.module).forward(self.module, *args, **kwargs)
        # a compiler recomputes from its graph, in which norms and streams move once
        compiled = is_compiling()
        if compiled and lacks("2.9") and self._norms():  # there, norms move twice
            return torch.compiler.disable(self.__call__)(*args, **kwargs)
        around: Any = {} if compiled else {"context_fn": self._contexts}
        return checkpoint(
            type(self.module).forward,
            self.module,
            *args,
            use_reentrant=False,
            **around,
            **kwargs,
        )

    def _norms(self) -> list[nn.Module]:
        return [m for m in self.module.modules() if isinstance(m, _NormBase)]

    def _contexts(self) -> tuple[Any, Any]:
        state = self.rng.rng_state() if self.rng is not None else None
        return contextlib.nullcontext(), self._second_time(state)

    @contextlib.contextmanager
    def _second_time(self, state: Mapping[str, Any] | None) -> Iterator[None]:
        """Draws what was drawn before; norms update copies of their statistics."""
        kept = [(norm, dict(norm._buffers)) for norm in self._norms()]
        for norm, buffers in kept:
            copies = {k: None if b is None else b.clone() for k, b in buffers.items()}
            norm._buffers.update(copies)
        rng: Any = self.rng
        now = None if rng is None else rng.rng_state()
        try:
            if now is not None:
                rng.set_rng_state(state)
            yield
        finally:
            if now is not None:
                rng.set_rng_state(now)
            for norm, buffers in kept:
                norm._buffers.update(buffers)
