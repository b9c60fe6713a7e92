"""`gradient_checkpointing`: activations are computed again in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174), by
`torch.utils.checkpoint`, without reentrant autograd.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from devrun.errors import ConfigError
from devrun.models.blocks import blocks_of
from devrun.models.names import matching_modules

__all__ = ["checkpoint_blocks"]

KEY = "gradient_checkpointing"


def checkpoint_blocks(model: nn.Module, which: Any) -> str:
    """Keep of some modules only the inputs until the backward pass; says of which.

    Random streams are put back for the second computation, and batch norms count each
    batch once: the losses and weights have the same bits as without.

    Args:
        which: True for the model's blocks, by `gradient_checkpointing_enable` where it
            has that; or patterns of module names.

    Raises:
        ConfigError: there are no such modules.
    """
    if which is True and getattr(model, "supports_gradient_checkpointing", False):
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
    for _, module in found:
        module.forward = _Recomputed(module)  # type: ignore[method-assign]
    names = [name for name, _ in found]
    more = f" to {names[-1]}" if len(names) > 1 else ""
    return f"{len(names)} modules, {names[0]}{more}"


class _Recomputed:
    """The forward of `module`, whose activations are not kept."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.norms = [m for m in module.modules() if isinstance(m, _NormBase)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return type(self.module).forward(self.module, *args, **kwargs)
        return checkpoint(
            type(self.module).forward,
            self.module,
            *args,
            use_reentrant=False,
            context_fn=self._contexts,
            **kwargs,
        )

    def _contexts(self) -> tuple[Any, Any]:
        return contextlib.nullcontext(), self._statistics_kept()

    @contextlib.contextmanager
    def _statistics_kept(self) -> Iterator[None]:
        """The second time, batch norms update copies of their statistics."""
        kept = [(norm, dict(norm._buffers)) for norm in self.norms]
        for norm, buffers in kept:
            copies = {k: None if b is None else b.clone() for k, b in buffers.items()}
            norm._buffers.update(copies)
        try:
            yield
        finally:
            for norm, buffers in kept:
                norm._buffers.update(buffers)
