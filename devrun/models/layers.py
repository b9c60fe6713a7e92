"""The layers of a model: as a table, and those that a batch completes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from devrun.text import aligned

DEPTH = 3
"""Names of more parts are layers inside those that are listed."""


def layers_of(model: nn.Module) -> str:
    """A row for each layer: its name, class, parameters, and whether they train.

    Drawn by torchinfo where that is installed.
    """
    with suppress(ImportError):
        from torchinfo import summary

        columns = ("num_params", "trainable")
        return str(summary(model, depth=DEPTH, col_names=columns, verbose=0))
    rows = [["layer", "class", "parameters", ""]]
    for name, module in model.named_modules():
        if name.count(".") < DEPTH:
            held = list(module.parameters())
            lazy = any(is_lazy(each) for each in held)
            count = (
                "from the first batch" if lazy else f"{sum(p.numel() for p in held):,}"
            )
            frozen = held and not any(each.requires_grad for each in held)
            shown = [name or "(all)", type(module).__name__, count]
            rows.append([*shown, "not trained" if frozen else ""])
    return "\n".join(aligned(rows))


def complete(model: nn.Module, loader: Any) -> None:
    """Have lazy layers take their shapes from two samples, on the host.

    What compiles a model or spreads its weights needs the shapes before a batch comes.
    A model that raises stays as it is, which its first update tells.

    Args:
        model: called as `model(batch, "val")`.
        loader: of the training; nothing is taken out of it.
    """
    if any(map(is_lazy, model.parameters())):
        with suppress(Exception), torch.no_grad():
            model.eval()
            model(loader.collate_fn([loader.dataset[0], loader.dataset[1]]), "val")
        model.train()
