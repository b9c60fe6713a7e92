"""Whether a model is compiled, by whoever."""

from __future__ import annotations

from torch import nn


def is_compiled(module: nn.Module) -> bool:
    """Whether `module` itself is, by `torch.compile(module)` or `module.compile()`."""
    return (
        hasattr(module, "_orig_mod")
        or getattr(module, "_compiled_call_impl", None) is not None
    )
