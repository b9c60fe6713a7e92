"""The forward pass of one stage of a pipeline, by the model's own `forward`.

Every process calls the whole of it. What belongs to other stages runs on meta tensors,
which have shapes and no values; what only depends on the batch is there on all. At the
first layer of its stage a process puts what it received in the place of that layer's
arguments, and at the first layer of the next it stops, and sends them on.

Once for each shape of batch everything is a meta tensor (`Measuring`). That tells what
is exchanged, and whether the model can be divided there, before anything is computed.
What modules of earlier stages gave then, they give later without running.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from devrun.data import rng
from devrun.errors import ConfigError, DevrunError, UnsupportedFeatureError
from devrun.models.recompute import is_recomputed
from devrun.models.split import CONTAINERS
from devrun.parallel.stage_weights import REUSED

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
    stages: Mapping[int, tuple[str, tuple[int, ...]]]
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
            isinstance(tensor, nn.Parameter) and id(tensor) in self._cut.stages
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
        name, stages = self._cut.stages.get(id(tensor), ("", ()))
        if isinstance(tensor, nn.Parameter) and name:
            if self.stage in stages:
                return
            raise UnsupportedFeatureError(
                f"parallel: {name} belongs to stage {stages[0]}, and {user} uses it in "
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
        if self.stage not in self._cut.stages.get(id(target), ("", ()))[1]:
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


class StagePass:
    """Forward passes of one stage.

    Args:
        model: the user's module.
        starts: the first layers of the stages but the first.
        stage: of this process.
        stages: the stages that each parameter and buffer is in, by name.
        device: where activations are.
        draws: has `rng_state` and `set_rng_state` of the device; None for the host.
    """

    def __init__(
        self,
        model: nn.Module,
        starts: Sequence[str],
        stage: int,
        stages: Mapping[str, tuple[int, ...]],
        device: torch.device,
        draws: Any = None,
    ) -> None:
        named = [*model.named_parameters(), *model.named_buffers()]
        found = {id(tensor): (name, stages[name]) for name, tensor in named}
        self.cut, self.stage = Cut(starts, found, device), stage
        self._params, self._draws = list(model.parameters()), draws
        self._buffers, self._modules = list(model.buffers()), list(model.modules())
        self.current: Any = None
        """The pass that is being done."""
        for number, name in enumerate(starts, 1):
            layer = model.get_submodule(name)
            hook = self._hook(number)
            layer.register_forward_pre_hook(hook, with_kwargs=True)
        for unit in self._earlier(model, ""):
            unit.forward = _Unit(unit.forward, self)

    def _earlier(self, module: nn.Module, name: str) -> Iterator[nn.Module]:
        """The largest modules that have weights of earlier stages and no others."""
        params = [self.cut.stages[id(p)][1] for p in module.parameters()]
        mixed = any(_is_in(start, name) for start in self.cut.starts)
        called = not isinstance(module, CONTAINERS)
        if params and called and not mixed and all(p[-1] < self.stage for p in params):
            yield module
            return
        for key, child in module.named_children():
            yield from self._earlier(child, f"{name}.{key}".lstrip("."))

    @property
    def trained(self) -> tuple[bool, ...]:
        """Which parameters are, on all stages."""
        return tuple([param.requires_grad for param in self._params])

    def plan(self, forward: Callable[[], Any]) -> Plan:
        """What enters each further stage in `forward`, a pass of the whole model.

        Raises:
            ConfigError: the stages do not begin in their order.
            UnsupportedFeatureError: the model cannot be divided there.
        """
        measuring = Measuring(self.cut)
        before = self._states()
        kept = [(buffer, buffer._version, buffer.clone()) for buffer in self._buffers]
        self.current = measuring
        try:
            with measuring:
                forward()
        except Reached:
            pass
        finally:
            self.current = None
            after = self._states()
            rng.restore(before[0])
            if self._draws is not None:
                self._draws.set_rng_state(before[1])
            for buffer, version, value in kept:  # such as a norm's count of batches
                if buffer._version != version:
                    buffer.copy_(value)
        if not _same(before, after):
            raise UnsupportedFeatureError(
                "parallel: mesh pipeline cannot be combined with random numbers that "
                "the forward pass draws for the batch itself, as each stage draws "
                "others: draw them in the data set",
                key="parallel",
            )
        starts = self.cut.starts
        if measuring.stage < len(starts):
            raise ConfigError(
                f"parallel: stage {measuring.stage + 1} begins at "
                f"{starts[measuring.stage]!r}, which the forward pass never "
                "calls: name a layer in split that it calls",
                key="split",
            )
        if measuring.again and any(map(is_recomputed, self._modules)):
            raise UnsupportedFeatureError(
                "parallel: mesh pipeline cannot be combined with gradient_checkpointing"
                " where several layers of a stage take one value of an earlier stage",
                key="gradient_checkpointing",
            )
        return Plan(tuple(measuring.found), measuring.outputs, measuring.again)

    def run(
        self, forward: Callable[[], Any], plan: Plan, received: Sequence[Tensor]
    ) -> Any:
        """What `forward` gives in the last stage; elsewhere the tensors to send."""
        self.current = running = _Running(self, plan, received)
        try:
            with running.after, running.before:
                if self.stage:
                    running.skip()
                return forward()
        except Reached as reached:
            return reached.values
        finally:
            self.current = None

    def _states(self) -> tuple[Any, Any]:
        device = None if self._draws is None else self._draws.rng_state()
        return rng.capture(), device

    def _hook(self, number: int) -> Any:
        # a function and no method: a copy of the model has no passes of its own
        def begin(_: nn.Module, args: Any, kwargs: Any) -> Any:
            if self.current is None:
                return None
            return self.current.begin(number, args, kwargs)

        return begin


class _Running:
    """One pass of this stage."""

    def __init__(
        self, stage_pass: StagePass, plan: Plan, received: Sequence[Tensor]
    ) -> None:
        self._pass, self._plan, self._received = stage_pass, plan, received
        self._calls = {unit: iter(given) for unit, given in plan.outputs.items()}
        self.before = ExitStack()
        """Holds until the stage begins."""
        self.after = ExitStack()
        """And from then on."""
        self._entered = Entered({})

    def skip(self) -> None:
        self.before.enter_context(torch.no_grad())
        self.before.enter_context(OnMeta(self._pass.cut))

    def begin(self, number: int, args: Any, kwargs: Any) -> Any:
        stage = self._pass.stage
        if number < stage:
            return None
        leaves, spec = tree_flatten((args, kwargs))
        crossing = self._plan.crossings[number - 1]
        if number > stage:
            # autocast does not change the types of meta tensors: what the next stage
            # expects may be wider than what is here
            raise Reached(
                [
                    self._entered.of(leaves[place]).to(meta.dtype).contiguous()
                    for place, meta in zip(crossing.places, crossing.metas, strict=True)
                ]
            )
        self.before.close()
        received = {}
        for place, value in zip(crossing.places, self._received, strict=True):
            received[id(leaves[place])] = leaves[place], value
            leaves[place] = value
        self._entered = Entered(received)
        if stage in self._plan.again:
            self.after.enter_context(self._entered)
        return tree_unflatten(leaves, spec)

    def through(self, unit: _Unit, args: Any, kwargs: Any) -> Any:
        given = next(self._calls.get(unit, iter(())), None)
        return unit.inner(*args, **kwargs) if given is None else given


class _Unit:
    """The forward of a module of an earlier stage; `inner` is its own."""

    def __init__(self, inner: Callable[..., Any], stage_pass: StagePass) -> None:
        self.inner, self._pass = inner, stage_pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        current = self._pass.current
        if current is None:
            return self.inner(*args, **kwargs)
        return current.through(self, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.inner, memo)


def _is_in(name: str, owner: str) -> bool:
    return not owner or name.startswith(f"{owner}.")


def _same(before: Any, after: Any) -> bool:
    return all(
        bool((old == new).all()) if hasattr(old, "shape") else old == new
        for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True)
    )
