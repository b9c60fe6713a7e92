"""Whether the stages of a pipeline have the same work, and a split where they have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from devrun.devices.ipu.probes.balance import Split, Trace, balanced
from devrun.devices.ipu.probes.options import key_of
from devrun.devices.ipu.split import split_of
from devrun.errors import ConfigError
from devrun.probes.finding import Finding
from devrun.probes.keys import pasted
from devrun.probes.sources import assigned, made_at

WORTH = 1.25
"""How many times the work of a better split's largest stage is worth a word."""


def unbalanced(step: Any, trace: Trace, cfg: Any, site: str | None) -> Finding | None:
    """The config's split, where another has clearly less work in its largest stage.

    Args:
        step: with the blocks of the split on it.
        trace: of `step` on one micro-batch.
        site: where the config has its split.
    """
    home = {"": 0, **dict(split_of(step))}  # what runs before the first edge
    work = [0] * (1 + max(home.values()))
    blocks = trace.blocks()
    if not 1 < len(work) <= len(blocks):
        return None
    for block in trace.blocks(list(home)):
        work[home[block.name]] += block.flops
    better = balanced(blocks, len(work))
    most, total = max(work), sum(work)
    if not total or most < WORTH * better.most_flops:
        return None
    fix = edges_of(better, cfg)
    fullest = work.index(most)
    shares = ", ".join(f"IPU {i}: {done / total:.0%}" for i, done in enumerate(work))
    why = (
        f"it has {most / total:.0%} of the work, for which the others wait ({shares}); "
        f"a better division has {better.most_flops / total:.0%} in its largest"
    )
    row = ("split", f"IPU {fullest}", why, pasted(fix), site)
    return Finding("slow", *row, fix=fix)


def torn(
    step: Any, trace: Trace, edges: Sequence[Mapping[str, Any]], cfg: Any
) -> Iterator[Finding]:
    """Weights that layers on several IPUs share, of which each has room on one.

    Args:
        step: with the blocks of the split on it.
        trace: of `step` on one micro-batch.
        edges: those of the config.
    """
    home = {"": 0, **dict(split_of(step))}
    for (first, block), *others in trace.tied(list(home)):
        ipu = home[block]
        for name, other in others:
            if home[other] == ipu:
                continue
            layer = name.rpartition(".")[0]
            more = [*map(dict, edges), {"layer_to_call": layer, "ipu_id": ipu}]
            fix = {
                key_of(cfg, "train_split_edges"): more,
                key_of(cfg, "executionStrategy"): "AutoIncrement",
            }
            why = (
                f"on IPU {home[other]} it is the weight {first} of IPU {ipu}, and a "
                "pipeline holds a weight on one IPU"
            )
            remedy = f"one more edge, by which it runs there: {pasted(fix)}"
            site = assigned(type(step.module), name)[0] or made_at(step.module, layer)
            yield Finding("breaks", "shared weights", name, why, remedy, site, fix=fix)


def edges_of(split: Split, cfg: Any) -> dict[str, Any]:
    """The split as keys of the config."""
    return {
        key_of(cfg, "train_split_edges"): split.edges,
        key_of(cfg, "num_ipus"): len(split.stages),
    }


def proposed(trace: Trace | None, ipus: int, site: str | None, cfg: Any) -> Finding:
    """Edges for a model that nothing divides; without them where it has none.

    Args:
        trace: of one micro-batch; None of a model that cannot be followed.
    """
    key = key_of(cfg, "num_ipus")
    why = f"nothing says which layers run on which of {ipus} IPUs"
    try:
        split = balanced([] if trace is None else trace.blocks(), ipus)
    except ConfigError as error:
        remedy = "name the first layer of each block in train_split_edges"
        return Finding("breaks", "split", key, f"{why}: {error}", remedy, site)
    fix = edges_of(split, cfg)
    return Finding("breaks", "split", key, why, pasted(fix), site, fix=fix)
