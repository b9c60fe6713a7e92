"""A pass of a whole model without values: what its stages exchange.

Meta tensors have a shape and a type. What takes one, or a weight, gives one; what
depends on the batch alone is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from devrun.errors import ConfigError, DevrunError, UnsupportedFeatureError
from devrun.parallel.stages import REUSED

_DEVICE: Any = torch.Tensor.device.__get__
_PLAIN = (int, float, str, type(None))
_MOVES = ("to", "cpu", "cuda")
_ASSIGNS = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__")


@dataclass(frozen=True)
class Crossing:
    """What enters a stage: which of the first layer's arguments, and their shapes."""

    places: tuple[int, ...]
    metas: tuple[Tensor, ...]


@dataclass(frozen=True)
class Plan:
    """What is exchanged for batches of one kind."""

    crossings: tuple[Crossing, ...]
    """Of each stage but the first."""
    outputs: Mapping[Any, Sequence[Any]]
    """What each call of a module of an earlier stage gives; None: let it run."""
    again: Set[int]
    """Stages that use what entered them after their first layer, by the same name."""


class Reached(BaseException):
    """The pass need not go on; no `except Exception` of a model may catch it."""

    def __init__(self, values: Sequence[Tensor] = ()) -> None:
        self.values = tuple(values)


@dataclass(frozen=True)
class Cut:
    """How a model is divided."""

    starts: Sequence[str]
    """The first layers of the stages but the first."""
    homes: Mapping[int, tuple[str, tuple[int, ...]]]
    """`id` of each parameter and buffer: its name and stages."""
    device: torch.device
    """Where activations are."""


class OnMeta(TorchFunctionMode):
    """Lets functions that take a meta tensor, or a weight, give a meta tensor."""

    def __init__(self, cut: Cut) -> None:
        super().__init__()
        self._cut = cut

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if not any(map(self._is_elsewhere, tensors)):
            return func(*args, **kwargs)
        if func == _DEVICE:  # what is made for it may depend on the batch alone
            return self._cut.device
        return self._call(func, tensors, *_on_meta(func, args, kwargs))

    def _is_elsewhere(self, tensor: Tensor) -> bool:
        """Whether it has no values here, or as a weight is not to be used yet."""
        return tensor.is_meta or (
            isinstance(tensor, nn.Parameter) and id(tensor) in self._cut.homes
        )

    def _call(self, func: Any, tensors: list[Tensor], args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)


class Measuring(OnMeta):
    """A pass in which every weight is a meta tensor; watches where values go."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut)
        self.stage = 0
        self.found: list[Crossing] = []
        self.outputs: dict[Any, list[Any]] = {}
        self._made: dict[int, tuple[Tensor, int]] = {}
        """Meta tensors, kept alive for their ids, and the stages that made them."""
        self.again: set[int] = set()
        self._entered: dict[int, Tensor] = {}
        """`id` of what an earlier stage made -> what entered the present one for it."""

    def begin(self, number: int, args: Any, kwargs: Any) -> Any:
        starts = self._cut.starts
        if number != self.stage + 1:
            again = "again " if number <= self.stage else ""
            raise ConfigError(
                f"parallel: the forward pass calls {starts[number - 1]!r}, where stage "
                f"{number} begins, {again}in stage {self.stage}: stages follow each "
                "other, and their first layers are called once; divide it elsewhere "
                "with split",
                key="split",
            )
        leaves, spec = tree_flatten((args, kwargs))
        places, metas, entered = [], [], {}
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and self._is_elsewhere(leaf):
                self._check(self._present(leaf), starts[number - 1])
                meta = torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
                leaves[place] = meta.requires_grad_(leaf.requires_grad)
                places.append(place)
                metas.append(leaves[place])
                entered[id(leaf)] = leaves[place]
        self.stage, self._entered = number, entered
        for meta in metas:
            self._made[id(meta)] = meta, number
        self.found.append(Crossing(tuple(places), tuple(metas)))
        return tree_unflatten(leaves, spec)

    def through(self, unit: Any, args: Any, kwargs: Any) -> Any:
        """Run it, and keep what it gives if that has no values."""
        result = unit.inner(*args, **kwargs)
        plain = all(
            leaf.is_meta if isinstance(leaf, Tensor) else isinstance(leaf, _PLAIN)
            for leaf in tree_leaves(result)
        )
        kept = tree_map_only(Tensor, Tensor.detach, result) if plain else None
        self.outputs.setdefault(unit, []).append(kept)
        return result

    def _call(self, func: Any, tensors: list[Tensor], args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", str(func))
        self._check_target(name, tensors[0])
        try:
            result = func(*args, **kwargs)
        except DevrunError:
            raise
        except (RuntimeError, NotImplementedError, ValueError) as error:
            if self.stage == len(self._cut.starts):
                raise Reached from None  # nothing more need be known
            reason = str(error).split("\n", 1)[0]
            raise UnsupportedFeatureError(
                f"parallel: mesh pipeline: stage {self.stage} of the forward pass "
                f"cannot run without values, which {name} asks for ({reason:.100}): "
                "divide the model behind it with split",
                key="split",
            ) from error
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if made:
            for tensor in tensors:
                self._check(self._present(tensor), name)
        for tensor in made:
            self._made[id(tensor)] = tensor, self.stage
        return result

    def _present(self, tensor: Tensor) -> Tensor:
        """What stands for it in this stage."""
        if id(tensor) not in self._entered:
            return tensor
        self.again.add(self.stage)
        return self._entered[id(tensor)]

    def _check(self, tensor: Tensor, user: str) -> None:
        """Refuse a value of another stage."""
        name, homes = self._cut.homes.get(id(tensor), ("", ()))
        if isinstance(tensor, nn.Parameter) and name:
            if self.stage in homes:
                return
            raise UnsupportedFeatureError(
                f"parallel: {name} belongs to stage {homes[0]}, and {user} uses it in "
                f"stage {self.stage}: register it where it is used, list it in "
                f"{REUSED} of the model if the last stage uses it again, or divide "
                "elsewhere with split",
                key="split",
            )
        stage = self._made.get(id(tensor), (tensor, self.stage))[1]
        if stage != self.stage:
            start = self._cut.starts[self.stage - 1]
            raise UnsupportedFeatureError(
                f"parallel: {user} in stage {self.stage} uses what stage {stage} "
                f"computed, and no argument of {start!r} brings it (shape "
                f"{tuple(tensor.shape)}): pass it on, or divide elsewhere with split",
                key="split",
            )

    def _check_target(self, name: str, target: Tensor) -> None:
        """Refuse activations that are written into what is there on every stage."""
        in_place = name in _ASSIGNS or (name[-1] == "_" and name[-2:] != "__")
        last = self.stage == len(self._cut.starts)  # nobody has to be sent it
        if last or not in_place or self._is_elsewhere(target):
            return
        if self.stage not in self._cut.homes.get(id(target), ("", ()))[1]:
            raise UnsupportedFeatureError(
                f"parallel: mesh pipeline: stage {self.stage} of the forward pass "
                f"writes activations into a tensor that it made before ({name}): "
                "make a new tensor, as torch.cat does",
                key="split",
            )


class Entered(TorchFunctionMode):
    """Puts what a stage received in the place of what has no values here."""

    def __init__(self, received: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self._received = received

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map_only(Tensor, self.of, (args, kwargs or {}))
        return func(*args, **kwargs)

    def of(self, tensor: Tensor) -> Tensor:
        """What was received for it, or itself."""
        return self._received.get(id(tensor), (tensor, tensor))[1]


def _on_meta(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments as meta tensors, and where they are moved to."""
    args, kwargs = tree_map_only(Tensor, _meta, (args, kwargs))
    if getattr(func, "__name__", "") in _MOVES:
        args = tuple(
            "meta" if isinstance(each, (torch.device, str)) else each for each in args
        )
        kwargs = {**kwargs, **({"device": "meta"} if "device" in kwargs else {})}
    return args, kwargs


def _meta(tensor: Tensor) -> Tensor:
    if tensor.is_meta:
        return tensor
    empty = torch.empty_like(tensor.detach(), device="meta")
    return empty.requires_grad_(tensor.requires_grad)
