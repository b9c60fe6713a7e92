"""Where the stages of a pipeline begin, and which of them a weight belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from devrun.errors import ConfigError
from devrun.models.blocks import blocks_of, depths_of
from devrun.models.split import Edge, edges_of, partition

REUSED = "reused_at_end"
"""The attribute in which a model names the weights that the end of its forward pass
uses again, such as an embedding that makes the logits too."""


def starts_of(model: nn.Module, split: Any, num_stages: int) -> list[str]:
    """The first layer of each stage but the first, in their order.

    Args:
        split: names of layers, one for each further stage; or edges `{layer_to_call,
            ipu_id}`, where those with one number are one stage; None or `auto` takes
            the model's numbered blocks, so that the stage with the most parameters has
            as few as can be.

    Raises:
        ConfigError: no such layer, another number of stages, or stages that go
            backwards.
    """
    if split is None or split == "auto":
        return _balanced(model, num_stages)
    plain = not any(isinstance(each, Mapping) for each in split)
    if plain:
        split = [
            {"layer_to_call": each, "ipu_id": number}
            for number, each in enumerate(split, 1)
        ]
    where = "parallel.split"
    try:
        edges = edges_of(model, split, where)
    except ConfigError as error:
        error.key = "split"
        raise
    place = {name: n for n, (name, _) in enumerate(model.named_modules())}
    edges.sort(key=lambda edge: place.get(edge.name, 0))
    starts: list[Edge] = []
    stage = 0
    for edge in edges:
        if edge.ipu < stage:
            raise ConfigError(
                f"{where} goes backwards: {edge.name!r} is in stage {edge.ipu}, and "
                f"{starts[-1].name!r} before it in stage {stage}: let stages ascend in "
                "the order of the model's layers",
                key="split",
            )
        if edge.ipu > stage:
            starts.append(edge)
        stage = edge.ipu
    if len(starts) != num_stages - 1 or stage != num_stages - 1:
        raise ConfigError(
            f"{where} makes {len(starts) + 1} stages, and mesh pipeline is "
            f"{num_stages}: name the first layer of {num_stages - 1} further ones, or "
            f"set pipeline: {len(starts) + 1}",
            key="split",
        )
    return [edge.name for edge in starts]


def _balanced(model: nn.Module, num_stages: int) -> list[str]:
    names = [name for name, _ in blocks_of(model)]
    if len(names) < num_stages:
        count = f"only {len(names)}" if names else "fewer than two"
        raise ConfigError(
            f"parallel: mesh pipeline {num_stages}, and {type(model).__name__} has "
            f"{count} numbered blocks: name the first layer of each further stage in "
            "split, or take fewer stages",
            key="mesh",
        )
    sizes = [0] * (len(names) + 2)
    parameters = dict(model.named_parameters())
    for name, depth in (depths_of(model) or {}).items():
        sizes[depth] += parameters[name].numel()
    # what stands before the first block is with it, what follows the last with that
    sizes[1] += sizes[0]
    sizes[-2] += sizes[-1]

    def cost(_: int, first: int, end: int) -> int:
        return sum(sizes[first + 1 : end + 1])

    found = partition(len(names), num_stages, cost, cost, None) or ()
    return [names[first] for first in found[1:]]


def stages_by_name(model: nn.Module, starts: list[str]) -> dict[str, tuple[int, ...]]:
    """The stages that each parameter and buffer of `model` is in, by name.

    It is in the stage of its module: what is registered from the first layer of a
    stage on, up to that of the next. A weight that several names share, or that the
    model lists in `reused_at_end`, is in several; its first name has them all.

    Raises:
        ConfigError: the model lists what it does not have.
    """
    stage, of_module = 0, {}
    following = iter([*starts, None])
    start = next(following)
    for name, _ in model.named_modules(remove_duplicate=False):
        if name == start:
            stage, start = stage + 1, next(following)
        of_module[name] = stage
    stages: dict[str, tuple[int, ...]] = {}
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    shared: dict[int, set[int]] = {}
    for name, tensor in named:
        mine = of_module[name.rpartition(".")[0]]
        shared.setdefault(id(tensor), set()).add(mine)
    known = dict(named)
    for prefix, module in model.named_modules():
        for name in getattr(module, REUSED, ()):
            reused = known.get(f"{prefix}.{name}".lstrip("."))
            if reused is None:
                raise ConfigError.of(
                    REUSED,
                    f"of {type(module).__name__} lists {name!r}, which it has not",
                )
            shared[id(reused)].add(len(starts))
    for name, tensor in named:
        stages[name] = tuple(sorted(shared[id(tensor)]))
    return stages


def describe(model: nn.Module, starts: list[str]) -> str:
    """`stage 0: 12 parameters; stage 1 from blocks.2: 34 parameters`."""
    counts = [0] * (len(starts) + 1)
    parameters = dict(model.named_parameters())
    for name, stages in stages_by_name(model, starts).items():
        if name in parameters:
            for stage in stages:
                counts[stage] += parameters[name].numel()
    parts = [f"stage 0: {counts[0]:,} parameters"]
    for stage, start in enumerate(starts, 1):
        parts.append(f"stage {stage} from {start}: {counts[stage]:,}")
    return "; ".join(parts)
