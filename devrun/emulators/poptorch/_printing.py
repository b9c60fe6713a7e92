"""The layout of printed tensors, and of modules with their blocks."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn


def print_tensor(tensor: torch.Tensor, title: str, layout: tuple[Any, ...]) -> None:
    """Write `title: (values)` to stderr."""
    digits, style, separator, opening, closing = layout
    head = f"{title}: " if title else ""
    values = tensor.detach().cpu()

    def number(value: float | int | bool) -> str:
        if not isinstance(value, float):
            return str(value)
        if style == "scientific":
            return f"{value:.{max(digits - 1, 0)}e}"
        return f"{value:.{max(digits - 1, 0)}f}"

    def text(part: torch.Tensor, depth: int) -> str:
        if part.dim() == 0:
            return number(part.item())
        if part.dim() == 1:
            return f"{opening}{separator.join(map(number, part.tolist()))}{closing}"
        pad = " " * (depth + 1)
        rows = "".join(f"{pad}{text(row, depth + 1)}\n" for row in part)
        return f"{opening}\n{rows}{' ' * depth}{closing}"

    sys.stderr.write(f"{head}{text(values, 0)}\n")


def module_repr(module: nn.Module) -> str:
    """`repr(module)` with the block that begins at each module."""
    from poptorch._blocks import _BeginBlockHook

    begins = [
        f"{hook!r} "
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, _BeginBlockHook)
    ]
    head = "".join(begins)
    lines = [
        f"  ({name}): " + module_repr(child).replace("\n", "\n  ")
        for name, child in module.named_children()
    ]
    if not lines:
        return head + repr(module)
    body = "\n".join(lines)
    return f"{head}{type(module).__name__}({module.extra_repr()}\n{body}\n)"
