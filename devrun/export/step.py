"""One update of a run as a function of tensors, and as a graph.

It is the run's own: its step module, its rule of update with the clipping, and its
optimizer's `step`, followed with tensors in the place of all that an update changes.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from devrun.devices.gradients import clip_function
from devrun.devices.update import AdapterUpdate, UpdateRule
from devrun.errors import UnsupportedFeatureError
from devrun.tensors import map_tensors, named_tensors

COUNTER = "optimizer.step"


class TrainingStep:
    """`step(state, batch)` gives the loss and the next state, as tensors by name.

    Names of the state: those of the step module's weights and buffers, such as
    `module.fc.weight`; `optimizer.WEIGHT.KEY` of what the optimizer keeps for one;
    `optimizer.step`; and `lr`, or `lr[0]` and so on where groups of weights have
    learning rates of their own. Of a batch they are `batch[0]`, `batch['image']`.

    Args:
        session: prepared, with an optimizer that has done an update.
        batch: of one update, as its loader gives it.

    Raises:
        UnsupportedFeatureError: an update that cannot be done so.
    """

    def __init__(self, session: Any, batch: Any) -> None:
        _check(session)
        self.session, self.batch = session, batch
        self.model: nn.Module = session.step_module
        self.optimizer: Any = session.optimizer
        self.names = {value: name for name, value in self.model.named_parameters()}
        rates = [
            (group.get("initial_lr", group["lr"]), float(group["lr"]))
            for group in self.optimizer.param_groups
        ]
        distinct = sorted(set(rates))
        self.rates = [
            "lr" if len(distinct) == 1 else f"lr[{distinct.index(rate)}]"
            for rate in rates
        ]
        """Of each group, the name of its learning rate."""

    def state(self) -> dict[str, Tensor]:
        """A copy of what the run has now."""
        found = {value: key for key, value in self.names.items()}
        found.update(self.model.named_buffers())
        counters = set()
        for parameter, held in self.optimizer.state.items():
            for key, value in _tensors(held):
                if key == "step":
                    counters.add(float(value))
                else:
                    found[f"optimizer.{self.names[parameter]}.{key}"] = value
        if len(counters) > 1:
            raise UnsupportedFeatureError(
                "weights of which some were updated more often than others are not "
                f"exported: {sorted(counters)} times"
            )
        if counters:
            found[COUNTER] = torch.tensor(counters.pop())
        for name, group in zip(self.rates, self.optimizer.param_groups):
            found[name] = torch.tensor(float(group["lr"]))
        return {name: value.detach().clone() for name, value in found.items()}

    def inputs(self, batch: Any) -> dict[str, Tensor]:
        """The tensors of a batch, by name."""
        return dict(named_tensors(batch, "batch"))

    def __call__(
        self, state: Mapping[str, Tensor], inputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        values = iter(inputs.values())
        batch = map_tensors(lambda _: next(values), self.batch)
        tensors = {name: state[name] for name, _ in self.model.named_buffers()}
        for parameter, name in self.names.items():
            leaf = state[name].detach()
            tensors[name] = leaf.requires_grad_(parameter.requires_grad)
        optimizer = self._optimizer(tensors, state)
        given = {f"model.{name}": value for name, value in tensors.items()}
        outputs = torch.func.functional_call(
            _Update(self.session, self.model), given, (batch, optimizer)
        )
        after = dict(tensors)
        for parameter, held in optimizer.state.items():
            name = next(n for n, value in tensors.items() if value is parameter)
            for key, value in _tensors(held):
                after[COUNTER if key == "step" else f"optimizer.{name}.{key}"] = value
        return {"loss": outputs["loss"], **after}

    def _optimizer(
        self, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> Any:
        """The optimizer with tensors of the graph in the place of its own."""
        made = copy.copy(self.optimizer)
        made.param_groups, made.state = [], defaultdict(dict)
        for name, group in zip(self.rates, self.optimizer.param_groups):
            # a tensor that an optimizer would differentiate by stays a tensor in it
            rate = state[name].detach().requires_grad_()
            own = {"lr": rate, "differentiable": True, "foreach": False, "fused": None}
            own = {key: value for key, value in own.items() if key in group}
            weights = [tensors[self.names[each]] for each in group["params"]]
            made.param_groups.append({**group, **own, "params": weights})
        for parameter, held in self.optimizer.state.items():
            name = self.names[parameter]
            made.state[tensors[name]] = {
                **held,
                **{
                    key: state[COUNTER].clone()
                    if key == "step"
                    else state[f"optimizer.{name}.{key}"]
                    for key, _ in _tensors(held)
                },
            }
        return made


class _Update(nn.Module):
    """An update as a module, so that its tensors can be replaced."""

    def __init__(self, session: Any, model: nn.Module) -> None:
        super().__init__()
        rule: UpdateRule = session.adapter.update
        # what watches an update is left to who runs it
        self.rule = dataclasses.replace(
            rule,
            host_shared=False,
            guard=None,
            measure=None,
            unreached=None,
            clip=clip_function(session.policy),
        )
        self.model = model

    def forward(self, batch: Any, optimizer: Any) -> Any:
        return self.rule.step(self.model, batch, optimizer, None)


def traced(
    step: TrainingStep, state: Mapping[str, Tensor], inputs: Mapping[str, Tensor]
) -> tuple[fx.GraphModule, dict[str, fx.Node]]:
    """The graph of `step`, of operators without side effects, and what it computes, by
    name; its inputs are those of `state` and `inputs`, in their order."""
    from torch.backends import mkldnn
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.traceback import preserve_node_meta
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from devrun.export.simpler import FIRST, THEN

    names: list[str] = []

    def call(*given: Tensor) -> list[Tensor]:
        held = dict(zip(state, given)), dict(zip(inputs, given[len(state) :]))
        after = step(*held)
        names[:] = after
        return list(after.values())

    given = [value.detach().clone() for value in (*state.values(), *inputs.values())]
    step.model.train()
    # others have operators of their own
    with sdpa_kernel(SDPBackend.MATH), mkldnn.flags(enabled=False):
        followed = make_fx(call, FIRST, tracing_mode="fake", record_stack_traces=True)(
            *given
        )
    plain = torch.func.functionalize(fx.Interpreter(followed).run, remove="mutations")
    table = {**torch.export.default_decompositions(), **THEN}
    with preserve_node_meta():
        module = make_fx(plain, table, tracing_mode="fake")(*given)
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    results = dict(zip(names, end.args[0]))
    return module, {k: one for k, one in results.items() if one.op != "placeholder"}


def _tensors(held: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    return [(key, value) for key, value in held.items() if isinstance(value, Tensor)]


def _check(session: Any) -> None:
    policy = session.policy
    what = None
    if type(session.adapter.update) is not AdapterUpdate:
        what = "an update that the model, a hook or the optimizer does by itself"
    elif isinstance(session.optimizer, dict):
        what = "an update of several optimizers"
    elif policy.precision != "fp32":
        what = f"an update in {policy.precision}"
    elif policy.accumulate > 1 or policy.micro_batch is not None:
        what = "an update of several batches (cumulative_iters, micro_batch)"
    if what is not None:
        raise UnsupportedFeatureError(
            f"{what} is not exported: a step is of one batch, in fp32, by one optimizer"
        )
