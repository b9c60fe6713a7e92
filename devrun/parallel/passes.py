"""The forward pass of one stage of a pipeline, by the model's own `forward`.

Every process calls the whole of it. What belongs to other stages runs on meta tensors,
which have shapes and no values; what only depends on the batch is there on all. At the
first layer of its stage a process puts what it received in the place of that layer's
arguments, and at the first layer of the next it stops, and sends them on.

Once for each shape of batch everything is a meta tensor. That tells what is exchanged,
and whether the model can be divided there, before anything is computed. What modules of
earlier stages gave then, they give later without running.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from devrun.data import rng
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.models.recompute import is_recomputed
from devrun.models.split import CONTAINERS
from devrun.parallel.measuring import Cut, Entered, Measuring, OnMeta, Plan, Reached


class Passes:
    """Forward passes of one stage.

    Args:
        model: the user's module.
        starts: the first layers of the stages but the first.
        stage: of this process.
        homes: the stages that each parameter and buffer is in, by name.
        device: where activations are.
        draws: has `rng_state` and `set_rng_state` of the device; None for the host.
    """

    def __init__(
        self,
        model: nn.Module,
        starts: Sequence[str],
        stage: int,
        homes: Mapping[str, tuple[int, ...]],
        device: torch.device,
        draws: Any = None,
    ) -> None:
        named = [*model.named_parameters(), *model.named_buffers()]
        found = {id(tensor): (name, homes[name]) for name, tensor in named}
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
        params = [self.cut.homes[id(p)][1] for p in module.parameters()]
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

    def __init__(self, passes: Passes, plan: Plan, received: Sequence[Tensor]) -> None:
        self._passes, self._plan, self._received = passes, plan, received
        self._calls = {unit: iter(given) for unit, given in plan.outputs.items()}
        self.before = ExitStack()
        """Holds until the stage begins."""
        self.after = ExitStack()
        """And from then on."""
        self._entered = Entered({})

    def skip(self) -> None:
        self.before.enter_context(torch.no_grad())
        self.before.enter_context(OnMeta(self._passes.cut))

    def begin(self, number: int, args: Any, kwargs: Any) -> Any:
        stage = self._passes.stage
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

    def __init__(self, inner: Callable[..., Any], passes: Passes) -> None:
        self.inner, self._passes = inner, passes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        current = self._passes.current
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
