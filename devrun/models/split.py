"""Where the parts of a model begin that run on devices of their own: split edges.

As in MMCV an edge names the first layer of a part; the part lasts until the next edge,
in the order in which the model calls its layers. An IPU reads them as its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError, nearest

KEYS = ("layer_to_call", "ipu_id", "user_id")
CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
StageValue = Callable[[int, int, int], int]
"""(stage, first block, block after the last) -> a cost of that stage."""


@dataclass(frozen=True)
class Edge:
    """The first layer of a block, and where that runs."""

    name: str
    layer: nn.Module
    ipu: int
    user_id: str | None

    def __str__(self) -> str:
        return f"{self.name or 'the whole model'!r} on IPU {self.ipu}"


def edges_of(model: nn.Module, given: Any, where: str) -> list[Edge]:
    """The edges that `given` lists: `{layer_to_call, ipu_id, user_id?}` each.

    Args:
        where: the place in the config that a message names.

    Raises:
        ConfigError: an edge that names no layer, or a layer twice.
    """
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        raise ConfigTypeError(
            f"{where} must be a list of {{layer_to_call, ipu_id}}, got {given!r}"
        )
    found = [
        _edge(edge, model, f"{where}[{index}]") for index, edge in enumerate(given)
    ]
    _check_once(found, where)
    return found


def layers_of(
    model: nn.Module, given: Sequence[Any], where: str
) -> list[tuple[str, nn.Module]]:
    """Name and layer of each of `given`: a name, or an index in `named_modules()`.

    Raises:
        ConfigError: no layer, or one that is never called itself.
    """
    try:
        return [_layer(each, model, where) for each in given]
    except ConfigError as error:
        error.key = where
        raise


def partition(
    num_blocks: int,
    num_stages: int,
    cost: StageValue,
    memory: StageValue,
    limit: int | None,
) -> tuple[int, ...] | None:
    """First blocks of the stages; None where no division is within the limit.

    Exact: dynamic programming over (stage, block), once for the least largest cost and
    once more for the least largest memory at that cost.
    """

    def allowed(s: int, i: int, j: int) -> bool:
        return limit is None or memory(s, i, j) <= limit

    least = _bottleneck(num_blocks, num_stages, cost, allowed)
    if least is None:
        return None
    most = least[0]
    best = _bottleneck(
        num_blocks,
        num_stages,
        memory,
        lambda s, i, j: cost(s, i, j) <= most and allowed(s, i, j),
    )
    return (best or least)[1]


def _bottleneck(
    num_blocks: int,
    num_stages: int,
    value: StageValue,
    allowed: Callable[[int, int, int], bool],
) -> tuple[int, tuple[int, ...]] | None:
    """Least possible largest value of a stage, and the stages' first blocks.

    Every stage has a block at least; None when no division is allowed.
    """
    # best[j]: the same for the first j blocks in as many stages as were added so far
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(num_stages):
        longer: dict[int, tuple[int, tuple[int, ...]]] = {}
        for end in range(stage + 1, num_blocks - (num_stages - stage - 1) + 1):
            for start, (most, starts) in best.items():
                if start < end and allowed(stage, start, end):
                    here = max(most, value(stage, start, end))
                    if end not in longer or here < longer[end][0]:
                        longer[end] = here, (*starts, start)
        best = longer
    return best.get(num_blocks)


def _edge(edge: Any, model: nn.Module, where: str) -> Edge:
    if not isinstance(edge, Mapping):
        raise ConfigTypeError(
            f"{where} must be {{layer_to_call, ipu_id}}, got {edge!r}"
        )
    for key in edge:
        if key not in KEYS:
            raise UnknownNameError(
                f"{where} has no key {key!r}; {nearest(str(key), KEYS)}"
            )
    for key in KEYS[:2]:
        if key not in edge:
            raise ConfigError(f"{where} has no {key}: give layer_to_call and ipu_id")
    name, ipu, user_id = (edge.get(key) for key in KEYS)
    if isinstance(ipu, bool) or not isinstance(ipu, int) or ipu < 0:
        raise ConfigTypeError(f"{where}.ipu_id must be 0 or more, got {ipu!r}")
    if isinstance(user_id, bool) or not isinstance(user_id, (str, int, type(None))):
        raise ConfigTypeError(f"{where}.user_id must be a string, got {user_id!r}")
    name, layer = _layer(name, model, f"{where}.layer_to_call")
    return Edge(name, layer, ipu, None if user_id is None else str(user_id))


def _layer(name: Any, model: nn.Module, where: str) -> tuple[str, nn.Module]:
    if isinstance(name, bool) or not isinstance(name, (str, int)):
        raise ConfigTypeError(
            f"{where} must be the name of a layer or its index, got {name!r}"
        )
    if isinstance(name, int):
        indexed = [each for each, _ in model.named_modules()]
        if not 0 <= name < len(indexed):
            raise ConfigError(
                f"{where} is {name}, but the model has the layers 0 to "
                f"{len(indexed) - 1} (their place in named_modules())"
            )
        name = indexed[name]
    names = dict(model.named_modules(remove_duplicate=False))
    where = f"{where}: {name!r}"
    if name not in names:
        known = [n for n in names if n]
        raise UnknownNameError(
            f"{where} is no layer of the model; {nearest(name, known)}"
        )
    layer = names[name]
    if isinstance(layer, CONTAINERS):
        inside = next(
            (f" such as {n!r}" for n in names if n.startswith(f"{name}.")), ""
        )
        raise ConfigError(
            f"{where} is a {type(layer).__name__}, which is never called itself; name "
            f"a layer in it{inside}"
        )
    return name, layer


def _check_once(edges: list[Edge], where: str) -> None:
    seen: dict[int, tuple[int, str]] = {}
    for index, edge in enumerate(edges):
        if id(edge.layer) in seen:
            first, name = seen[id(edge.layer)]
            same = "" if name == edge.name else f", which is {name!r}"
            raise ConfigError(
                f"{where}[{index}] names {edge.name!r}{same}, as {where}[{first}] does "
                "already: a layer begins one block; remove one of the two"
            )
        seen[id(edge.layer)] = index, edge.name
