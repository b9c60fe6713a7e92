"""The layout of printed tensors, and of modules with their blocks."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Layout:
    """How values are written; the arguments of `ipu_print_tensor`."""

    summarise_threshold: int
    edge_items: int
    max_line_width: int
    digits: int
    float_format: str
    separator: str
    opening: str
    closing: str

    def number(self, value: float | int | bool) -> str:
        """One value."""
        if not isinstance(value, float):
            return str(value)
        kind = "e" if self.float_format == "scientific" else "f"
        return f"{value:.{max(self.digits - 1, 0)}{kind}}"

    def text(self, part: torch.Tensor, short: bool, depth: int = 0) -> str:
        """A tensor, row by row; with `short` the edges of each dimension only."""
        if part.dim() == 0:
            return self.number(part.item())
        edge = self.edge_items
        if short and len(part) > 2 * edge:
            shown = [self.text(row, short, depth + 1) for row in part[:edge]]
            shown.append("...")
            shown += [self.text(row, short, depth + 1) for row in part[-edge:]]
        else:
            shown = [self.text(row, short, depth + 1) for row in part]
        if part.dim() == 1:
            return self._line(shown, depth)
        rows = "".join(f"{' ' * (depth + 1)}{row}\n" for row in shown)
        return f"{self.opening}\n{rows}{' ' * depth}{self.closing}"

    def _line(self, items: list[str], depth: int) -> str:
        lines = [" " * depth + self.opening]
        for index, item in enumerate(items):
            last = index == len(items) - 1
            if index and len(lines[-1]) + len(item) > self.max_line_width:
                lines[-1] = lines[-1].rstrip(" ")
                lines.append(" " * (depth + 2))
            lines[-1] += item + (self.closing if last else self.separator)
        return "\n".join(lines)[depth:]


def print_tensor(tensor: torch.Tensor, title: str, layout: Layout) -> None:
    """Write `title: (values)` to stderr."""
    head = f"{title}: " if title else ""
    values = tensor.detach().cpu()
    short = values.numel() > layout.summarise_threshold
    sys.stderr.write(f"{head}{layout.text(values, short)}\n")


def module_repr(module: nn.Module) -> str:
    """`repr(module)` with the block that begins at each module."""
    from poptorch._blocks import block_of

    hook = block_of(module)
    head = f"{hook!r} " if hook else ""
    lines = [
        f"  ({name}): " + module_repr(child).replace("\n", "\n  ")
        for name, child in module.named_children()
    ]
    if not lines:
        return head + repr(module)
    body = "\n".join(lines)
    return f"{head}{type(module).__name__}({module.extra_repr()}\n{body}\n)"
