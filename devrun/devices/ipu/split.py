"""Which part of a model runs on which IPU: MMCV's split edges, as PopTorch blocks.

An edge names the first layer of a block; the block lasts until the next edge. What runs
before the first edge is on IPU 0. Blocks and checkpoints are hooks on the user's own
layers: the keys of `state_dict` and results on the host stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError, nearest

PLACED = "_ipu_split"
CHECKPOINTED = "_ipu_checkpoints"
KEYS = ("layer_to_call", "ipu_id", "user_id")
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


@dataclass(frozen=True)
class Edge:
    """The first layer of a block, and where that runs."""

    name: str
    layer: nn.Module
    ipu: int
    user_id: str | None


@dataclass
class _Placed:
    """What `apply_split` left on a model; copied with it."""

    blocks: list[tuple[str, int]]
    hooks: list[tuple[nn.Module, int]] = field(default_factory=list)


def apply_split(
    model: nn.Module,
    *,
    edges: Sequence[Mapping[str, Any]],
    sdk: Any,
    num_ipus: int | None,
    where: str,
) -> None:
    """Begin a block of `sdk` at the layer of every edge, instead of those of before.

    Args:
        model: the user's module; its layers keep their names and classes.
        edges: `{layer_to_call, ipu_id, user_id?}`; a layer is a name, or its index in
            `named_modules()`.
        sdk: PopTorch.
        num_ipus: IPUs of one replica; None for as many as the edges name.
        where: the place in the config that a message names.

    Raises:
        ConfigError: an edge that names no layer, a layer twice, IPU numbers with a
            gap, or more of them than `num_ipus`.
    """
    try:
        found = _edges(model, edges, where)
        _check_ipus(found, num_ipus, where)
        remove_split(model)
        _begin_blocks(model, found, sdk, where)
    except ConfigError as error:
        error.key = where
        raise


def remove_split(model: nn.Module) -> None:
    """Take off the blocks of `apply_split`; those of the model's own code stay."""
    placed = vars(model).pop(PLACED, None)
    if placed is not None:
        _unhook(placed.hooks)


def split_of(model: nn.Module) -> list[tuple[str, int]]:
    """(first layer, IPU) of every block that `apply_split` placed, in its order.

    On `model`, or on a module in it.
    """
    placed = (vars(module).get(PLACED) for module in model.modules())
    return next((list(each.blocks) for each in placed if each is not None), [])


def recompute(
    model: nn.Module,
    names: Sequence[str],
    sdk: Any,
    *,
    where: str = "train_ckpt_nodes",
) -> None:
    """Keep the outputs of the named layers; the rest of a stage is computed again.

    Outside of the device the outputs pass through untouched.

    Raises:
        ConfigError: a name that is no layer, or one that is never called itself.
    """
    try:
        layers = [_layer(model, name, where) for name in names]
    except ConfigError as error:
        error.key = where
        raise
    remove_recompute(model)
    keep = _KeepOutput(sdk.recomputationCheckpoint, sdk.isRunningOnIpu)
    handles = [layer.register_forward_hook(keep) for _, layer in layers]
    setattr(model, CHECKPOINTED, handles)


def remove_recompute(model: nn.Module) -> None:
    """Take off the checkpoints of `recompute`."""
    handles: list[RemovableHandle] = vars(model).pop(CHECKPOINTED, [])
    for handle in handles:
        handle.remove()


class _KeepOutput:
    """A forward hook. Holds functions, not the SDK, so that models can be copied."""

    def __init__(self, checkpoint: Any, on_device: Any) -> None:
        self._checkpoint, self._on_device = checkpoint, on_device

    def __call__(self, layer: nn.Module, inputs: Any, output: Any) -> Any:
        if not self._on_device():
            return output
        return tree_map_only(Tensor, self._checkpoint, output)


def _edges(model: nn.Module, given: Sequence[Any], where: str) -> list[Edge]:
    found: list[Edge] = []
    for index, edge in enumerate(given):
        made = _edge(model, edge, f"{where}[{index}]")
        for first, other in enumerate(found):
            if other.layer is made.layer:
                same = "" if other.name == made.name else f", which is {other.name!r}"
                raise ConfigError(
                    f"{where}[{index}] names {made.name!r}{same}, as {where}[{first}] "
                    "does already: a layer begins one block; remove one of the two"
                )
        found.append(made)
    return found


def _edge(model: nn.Module, edge: Any, where: str) -> Edge:
    keys = set(edge) if isinstance(edge, Mapping) else set()
    if not set(KEYS[:2]) <= keys <= set(KEYS):
        raise ConfigTypeError(
            f"{where} must be {{layer_to_call, ipu_id, user_id?}}, got {edge!r}"
        )
    ipu, user_id = edge["ipu_id"], edge.get("user_id")
    if type(ipu) is not int or ipu < 0:
        raise ConfigTypeError(f"{where}.ipu_id must be 0 or more, got {ipu!r}")
    name, layer = _layer(model, edge["layer_to_call"], f"{where}.layer_to_call")
    return Edge(name, layer, ipu, None if user_id is None else str(user_id))


def _layer(model: nn.Module, name: Any, where: str) -> tuple[str, nn.Module]:
    """Name and layer of a name, or of an index in `named_modules()`."""
    if type(name) is int:
        indexed = [each for each, _ in model.named_modules()]
        if not 0 <= name < len(indexed):
            raise ConfigError(
                f"{where} is {name}, but the model has the layers 0 to "
                f"{len(indexed) - 1} (their place in named_modules())"
            )
        name = indexed[name]
    names = dict(model.named_modules(remove_duplicate=False))
    if not isinstance(name, str) or name not in names:
        known = [each for each in names if each]
        raise UnknownNameError(
            f"{where}: {name!r} is no layer of the model; {nearest(str(name), known)}"
        )
    if isinstance(names[name], _CONTAINERS):
        inside = next((n for n in names if n.startswith(f"{name}.")), "none")
        raise ConfigError(
            f"{where}: {name!r} is a {type(names[name]).__name__}, which is never "
            f"called itself; name a layer in it such as {inside!r}"
        )
    return name, names[name]


def _begin_blocks(
    model: nn.Module, edges: Sequence[Edge], sdk: Any, where: str
) -> None:
    placed = _Placed([(edge.name, edge.ipu) for edge in edges])
    for edge in edges:
        before = set(edge.layer._forward_pre_hooks)
        try:
            sdk.BeginBlock(edge.layer, user_id=edge.user_id, ipu_id=edge.ipu)
        except sdk.Error as error:
            _unhook(placed.hooks)
            raise ConfigError(
                f"{where}: the model's own code begins a block at {edge.name!r} "
                "already; remove that BeginBlock, or the edge"
            ) from error
        added = set(edge.layer._forward_pre_hooks) - before
        placed.hooks += [(edge.layer, key) for key in added]
    setattr(model, PLACED, placed)


def _unhook(hooks: list[tuple[nn.Module, int]]) -> None:
    for layer, key in hooks:
        # the two dictionaries that torch's own handle would take the hook out of
        layer._forward_pre_hooks.pop(key, None)
        layer._forward_pre_hooks_with_kwargs.pop(key, None)


def _check_ipus(edges: list[Edge], num_ipus: int | None, where: str) -> None:
    if not edges:
        return
    used = {0, *(edge.ipu for edge in edges)}
    needed = max(used) + 1
    if num_ipus is not None and needed != num_ipus:
        raise ConfigError(
            f"{where} uses the IPUs 0 to {needed - 1}, but num_ipus is {num_ipus}: "
            f"set num_ipus to {needed}, or place the layers on {num_ipus}"
        )
    gaps = [ipu for ipu in range(needed) if ipu not in used]
    if gaps:
        raise ConfigError(
            f"{where} leaves out IPU {', '.join(map(str, gaps))} of 0 to {needed - 1}: "
            "number the IPUs without a gap"
        )
