"""Runs an executable: the loops over device iterations, accumulation and replicas.

One call is, for each device iteration: gradients from zero; forward and backward of
each micro-batch with the same weights; the gradients combined by mean or sum; one
update. The first dimension of each input is laid out `[D, G, R / group, micro-batch]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from poptorch import _rules, enums
from poptorch._compile import Executable, micro, micro_batches
from poptorch._device_optimizer import DeviceOptimizer
from poptorch._errors import Error
from poptorch._half import FloatPartials
from poptorch._tape import Slot, last_reads
from poptorch._weights import DeviceWeights


@contextmanager
def device_rng(state: list[torch.Tensor]) -> Iterator[None]:
    """Random numbers come from the device's stream; the host's is left alone."""
    host = torch.get_rng_state()
    torch.set_rng_state(state[0])
    try:
        yield
    finally:
        state[0] = torch.get_rng_state()
        torch.set_rng_state(host)


class Runner:
    """One executable with its weights and, in training, its optimizer."""

    def __init__(
        self,
        graph: Executable,
        weights: DeviceWeights,
        options: Any,
        optimizer: DeviceOptimizer | None,
    ) -> None:
        self.graph = graph
        self.weights = weights
        self.options = options
        self.optimizer = optimizer
        self.gradients: dict[str, torch.Tensor] = {}
        self.loss_scale = torch.tensor(1.0)
        self._last = last_reads(graph.tape.nodes)
        self._keep = {slot.index for slot in graph.outputs if isinstance(slot, Slot)}
        self._products = FloatPartials() if graph.half else nullcontext()
        self._finite = bool(
            options.Precision._values.get("enable_floating_point_exceptions")
        )

    def run(self, tensors: list[torch.Tensor]) -> list[list[list[list[Any]]]]:
        """The outputs by device iteration, accumulation step and replica."""
        options = self.options
        steps = options.Training.gradient_accumulation
        inputs = [_rules.on_device(t) for t in tensors]
        results = []
        replicas = range(options.replication_factor)
        for iteration in range(options.device_iterations):
            done = []
            for step in range(iteration * steps, (iteration + 1) * steps):
                with self._products:
                    done.append(
                        [self._micro_batch(inputs, tensors, step, r) for r in replicas]
                    )
            if self.optimizer is not None:
                self._update(steps * len(replicas))
            results.append(done)
        return results

    def _part(self, step: int, replica: int) -> int:
        size = self.options.input_group_size
        groups = self.options.replication_factor // size
        orthogonal = self.options.input_group_type == enums.CommGroupType.Orthogonal
        group = replica % groups if orthogonal else replica // size
        return int(step * groups + group)

    def _micro_batch(
        self,
        inputs: list[torch.Tensor],
        originals: list[torch.Tensor],
        step: int,
        replica: int,
    ) -> list[Any]:
        graph = self.graph
        part, parts = self._part(step, replica), micro_batches(self.options)
        env: list[Any] = [None] * graph.slots
        for index, slot in enumerate(graph.inputs):
            value = micro(inputs[index], parts, part)
            env[slot] = value.clone() if index in graph.changed_inputs else value
        for slot, constant in graph.constants.items():
            env[slot] = constant.clone()
        self.weights.fill(env, replica)
        train = self.optimizer is not None
        with torch.set_grad_enabled(train):
            self._replay(env, train)
        if train and graph.loss is not None:
            self._backward(env[graph.loss])
        self.weights.cut()
        with torch.no_grad():
            for index in graph.changed_inputs:
                micro(originals[index], parts, part).copy_(env[graph.inputs[index]])
            return [
                env[slot.index].detach().clone() if isinstance(slot, Slot) else slot
                for slot in graph.outputs
            ]

    def _replay(self, env: list[Any], train: bool) -> None:
        for position, node in enumerate(self.graph.tape.nodes):
            node.run(env, train)
            if self._finite:
                self._check_finite(node, env)
            if not train:
                for slot in {*node.reads, *(s for _, s in node.writes)}:
                    if self._last[slot] == position and self._free(slot):
                        env[slot] = None

    def _free(self, slot: int) -> bool:
        return slot not in self._keep and slot not in self.graph.inputs

    def _check_finite(self, node: Any, env: list[Any]) -> None:
        slots = [slot for _, slot in node.writes]
        if node.name in _rules.COMPARISONS:
            slots += node.reads
        for slot in slots:
            value = env[slot]
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                if not torch.isfinite(value).all():
                    raise Error(
                        f"Floating point exception: {node.name} gave inf or nan",
                        type="poplar_error",
                    )

    def _backward(self, loss: torch.Tensor) -> None:
        if not loss.requires_grad:
            return
        gradient = torch.full_like(loss, self._scale())
        if isinstance(self._products, FloatPartials) and self.optimizer is not None:
            with self._products.message(self.optimizer.scaling.see):
                loss.backward(gradient)
            return
        loss.backward(gradient)

    def _scale(self) -> float:
        """Only half precision can tell a scaled loss from an unscaled one."""
        if self.optimizer is None or not self.graph.half:
            return 1.0
        return self.optimizer.loss_scale()

    @torch.no_grad()
    def _update(self, count: int) -> None:
        optimizer = self.optimizer
        if optimizer is None:
            return
        kind = self.options.Training.accumulation_and_replication_reduction_type
        self.loss_scale = torch.tensor(optimizer.loss_scale())
        divisor = self._scale() * (count if kind == enums.ReductionType.Mean else 1)
        accum = optimizer.groups[0]["accum_type"]
        for variable in self.weights.variables:
            for weight in variable.device:
                grad = weight.grad
                if grad is None:
                    continue
                if grad.dtype == torch.float16:
                    optimizer.scaling.see(grad)
                if divisor != 1:
                    grad.div_(divisor)
                if accum == torch.float16:
                    grad.copy_(grad.half())
                self.gradients[variable.name] = grad.clone()
        optimizer.scaling.adapt(optimizer.loss_scaling())
        optimizer.step()
        for variable in self.weights.variables:
            for weight in variable.device:
                weight.grad = None


def combined(results: list[list[list[list[Any]]]], options: Any, index: int) -> Any:
    """One output over all micro-batches, in the shape of the output mode."""
    mode, period = options.output_mode, options.output_return_period

    def value(iteration: int, step: int, replica: int) -> Any:
        return results[iteration][step][replica][index]

    iterations, steps = range(len(results)), range(len(results[0]))
    replicas = range(len(results[0][0]))
    if mode == enums.OutputMode.Final:
        blocks = [value(iterations[-1], steps[-1], r) for r in replicas]
    elif mode == enums.OutputMode.Sum:
        blocks = [
            _sum([value(d, g, r) for d in iterations for g in steps]) for r in replicas
        ]
    else:
        every = period if mode == enums.OutputMode.EveryN else 1
        chosen = [d for d in iterations if (d + 1) % every == 0]
        blocks = [value(d, g, r) for d in chosen for g in steps for r in replicas]
    if not blocks or len(blocks) == 1:
        return _rules.from_device(blocks[0]) if blocks else None
    if blocks[0].dim() == 0:
        return _rules.from_device(torch.stack(blocks))
    return _rules.from_device(torch.cat(blocks))


def _sum(values: list[torch.Tensor]) -> torch.Tensor:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total
