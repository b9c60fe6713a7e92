"""Whether the stages of a pipeline have the same work, and a split where they have."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from devrun.devices.ipu.batch import Flat, rebuild
from devrun.devices.ipu.probes.balance import Split, balance, largest_cost, measure
from devrun.devices.ipu.probes.options import key_of
from devrun.devices.ipu.split import split_of
from devrun.errors import ConfigError
from devrun.probes.finding import Finding
from devrun.probes.keys import pasted

WORTH = 1.25
"""How many times the work of a better split's largest stage is worth a word."""


def micro_batch(flat: Flat, rows: int) -> Any:
    """One of as many samples as are wanted, made of those that are here."""
    if not flat.tensors or not flat.tensors[0].dim():
        return rebuild(flat.template, flat.tensors)
    picked = torch.arange(rows) % flat.tensors[0].shape[0]
    return rebuild(flat.template, flat.take(picked))


def unbalanced(step: nn.Module, batch: Any, states: int, cfg: Any) -> Finding | None:
    """The config's split, where another has clearly less work in its largest stage.

    Args:
        step: with the blocks of the split on it.
        batch: one micro-batch.
        states: tensors that the optimizer keeps for each weight.
    """
    placed = split_of(step)
    ipus = 1 + max((ipu for _, ipu in placed), default=0)
    if ipus < 2:
        return None
    try:
        blocks = measure(step, batch, names=[name for name, _ in placed])
        better = balance(step, batch, ipus, optimizer_states=states)
    except ConfigError:
        return None  # the model cannot be followed without values
    home = dict(placed)
    work = [0] * ipus
    for block in blocks:
        work[home[block.name]] += block.flops
    most, total = max(work), sum(work)
    if not total or most < WORTH * largest_cost(better.blocks, better.starts):
        return None
    fix = edges_of(better, cfg)
    fullest = work.index(most)
    shares = ", ".join(f"IPU {i}: {done / total:.0%}" for i, done in enumerate(work))
    return Finding(
        severity="slow",
        kind="split",
        what=f"IPU {fullest}",
        why=f"it has {most / total:.0%} of the work, for which the others wait "
        f"({shares}); a better division has "
        f"{largest_cost(better.blocks, better.starts) / total:.0%} in its largest",
        remedy=pasted(fix),
        fix=fix,
    )


def edges_of(split: Split, cfg: Any) -> dict[str, Any]:
    """The split as keys of the config."""
    return {
        key_of(cfg, "train_split_edges"): split.edges,
        key_of(cfg, "num_ipus"): len(split.edges),
    }


def proposed(
    step: nn.Module, batch: Any, ipus: int, states: int, cfg: Any, severity: str
) -> Finding:
    """Edges for a model that nothing divides; without them where it has none.

    Args:
        batch: one micro-batch.
        states: tensors that the optimizer keeps for each weight.
    """
    key = key_of(cfg, "num_ipus")
    why = f"nothing says which layers run on which of {ipus} IPUs"
    try:
        split = balance(step, batch, ipus, optimizer_states=states)
    except ConfigError as error:
        remedy = "name the first layer of each block in train_split_edges"
        return Finding(severity, "split", key, f"{why}: {error}", remedy)
    fix = edges_of(split, cfg)
    return Finding(severity, "split", key, why, pasted(fix), fix=fix)
