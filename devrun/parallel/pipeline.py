"""`Pipeline`: consecutive parts of a model on processes that pass activations on.

torch's `PipelineStage` and its schedules: GPipe (Huang et al. 2019, arXiv:1811.06965)
and 1F1B (Narayanan et al. 2019, PipeDream, arXiv:1806.03377; flushed once an update).
The micro-batches of a pipeline are those of the update.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as group
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from devrun.dist import allreduce_grads
from devrun.parallel import sharding
from devrun.parallel.stage_pass import Plan, StagePass
from devrun.parallel.stage_weights import (
    StageWeights,
    describe,
    forget_others,
    stages_by_name,
    starts_of,
)
from devrun.parallel.strategy import (
    Strategy,
    obstacles,
    refuse_combined,
    share_weights,
)
from devrun.step import StepOutput, UpdatePolicy
from devrun.tensors import map_tensors, named_tensors

logger = logging.getLogger("devrun")

_OURS = ("type", "mesh", "split", "schedule")
_TOLD = ("loss", "log_vars", "num_samples", "num_items")
_KEPT = 64
"""Shapes of batches whose exchanges are remembered."""


class Pipeline(Strategy):
    """A stage on each process; with `replicate`, as many pipelines side by side."""

    divided = True
    staged = True

    _pass: StagePass
    _weights: StageWeights
    _group: Any
    _user: nn.Module

    def check(self, policy: UpdatePolicy, model: Any, optimizer: Any) -> None:
        others = [name for name in self.options.given() if name not in _OURS]
        step = model
        inside = {id(param) for param in step.module.parameters()}
        reasons = {
            **obstacles(policy, model, optimizer),
            "a loss that has parameters of its own": any(
                id(param) not in inside for param in model.parameters()
            ),
            "a model of another framework's own step": model.guest is not None,
            "recomputation by the model's own switch; give gradient_checkpointing "
            "patterns of module names": any(
                getattr(part, "gradient_checkpointing", None) is True
                for part in model.modules()
            ),
            ", ".join(others): bool(others),
        }
        refuse_combined("parallel: mesh pipeline", reasons)
        starts = starts_of(step.module, self.options.split, self.mesh.num_stages)
        stages_by_name(step.module, starts)

    def apply(self, model: Any, optimizer: Any, *, by_hand: bool = False) -> Any:
        share_weights(model)
        step, mesh = model, self.mesh
        self._user = user = step.module
        starts = starts_of(user, self.options.split, mesh.num_stages)
        logger.info(
            "parallel: %s, %s: %s",
            mesh.describe(),
            self.options.schedule,
            describe(user, starts),
        )
        stages = stages_by_name(user, starts)
        self._group = mesh.pipeline.get_group()
        ranks = group.get_process_group_ranks(self._group)
        self._last = ranks[-1]
        self._peers = {
            side: ranks[mesh.stage + side]
            for side in (-1, 1)
            if 0 <= mesh.stage + side < len(ranks)
        }
        self._weights = StageWeights(stages, mesh, self.device)
        self._weights.leave(user, optimizer)
        where = self.device, self.streams
        self._pass = StagePass(user, starts, mesh.stage, stages, *where)
        self._plans: dict[Any, Plan] = {}
        self._made: tuple[Any, Any] = (None, None)
        self._said = False
        if mesh.stage:  # stages are to leave out other units
            apart = torch.initial_seed() + mesh.data_size * mesh.stage
            torch.manual_seed(apart % 2**63)
        return model

    def update(
        self,
        parts: Sequence[Any],
        forward: Callable[[Any], Any],
        loss_of: Callable[[Any], Tensor],
        merged: Callable[[], StepOutput],
    ) -> StepOutput:
        parts = list(parts)
        self._say(len(parts))
        # the buffers that activations are received in have the shapes of one batch
        for shapes, alike in itertools.groupby(parts, _shapes):
            batches = list(alike)
            first = functools.partial(forward, batches[0])
            plan = self._planned(("train", shapes), first)
            self._batches, self._step = batches, loss_of
            schedule = self._schedule(len(batches), plan)
            index = torch.arange(len(batches))
            target = {"target": index} if self._is_last else {}
            try:
                schedule.step(index=index, **target)
            except RuntimeError as error:
                # torch wraps what the forward pass raises, and prints its arguments
                if isinstance(error.__cause__, Exception):
                    raise error.__cause__ from None
                raise
            finally:
                self._batches = []
        return self._told(merged if self._is_last else None)

    def evaluate(self, step: Any, batch: Any, mode: str) -> Any:
        def forward() -> Any:
            return step(batch, mode)

        plan = self._planned((mode, step.training, _shapes(batch)), forward)
        received = []
        if self.mesh.stage:
            for meta in plan.crossings[self.mesh.stage - 1].metas:
                received.append(torch.empty_like(meta, device=self.device))
                group.recv(received[-1], self._peers[-1])
        result = self._pass.run(forward, plan, received)
        if not self._is_last:
            for tensor in result:
                group.send(tensor, self._peers[1])
        return self._told(lambda: StepOutput(result))

    def average(self, model: Any) -> None:
        self._weights.add_up()
        if self.mesh.data_size > 1:
            here = [param for param in self._user.parameters() if not param.is_meta]
            allreduce_grads(here, group=self.mesh.replicas.get_group())

    def clip_function(self, policy: UpdatePolicy) -> Any:
        return sharding.clip_function(policy, self._norm)

    def largest_gradient(self) -> Any:
        return lambda optimizer: self._norm(optimizer, float("inf"))

    def model_state(self, state: dict[str, Any], *, full: bool) -> dict[str, Any]:
        return self._weights.whole(state) if full else self._weights.spread(state)

    def optimizer_state(self, tree: dict[str, Any], *, full: bool) -> dict[str, Any]:
        return {
            **tree,
            "state": self._weights.optimizer_state(tree["state"], full=full),
        }

    def take_optimizer_state(self, model: nn.Module, optimizer: Any) -> None:
        forget_others(optimizer)

    @property
    def _is_last(self) -> bool:
        return self.mesh.stage == self.mesh.num_stages - 1

    def _say(self, count: int) -> None:
        """Log, once, what a pipeline of `count` micro-batches leaves unused.

        (p - 1) / (m + p - 1): Narayanan et al. 2021 (arXiv:2104.04473), section 2.2.
        """
        if self._said:
            return
        self._said, more = True, self.mesh.num_stages - 1
        logger.info(
            "pipeline: %d micro-batch(es) an update, %d stages: each waits %.0f%% "
            "of the time, (p-1)/(m+p-1); more cumulative_iters or a smaller "
            "micro_batch make it less",
            count,
            more + 1,
            100 * more / (count + more),
        )

    def _planned(self, key: Any, forward: Callable[[], Any]) -> Plan:
        """What is exchanged for batches of one kind; the model may be thawed amid."""
        key = key, self._pass.trained
        if key not in self._plans:
            found = self._pass.plan(forward)
            while len(self._plans) >= _KEPT:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = found
        return self._plans[key]

    def _schedule(self, count: int, plan: Plan) -> Any:
        """torch's schedule for `count` micro-batches of one shape; the last is kept."""
        made_for, schedule = self._made
        if made_for is None or made_for[0] is not plan or made_for[1] != count:
            number, last = self.mesh.stage, self._is_last
            loss = torch.empty(1, device="meta", requires_grad=True)
            stage = PipelineStage(
                _Stage(self, plan),
                number,
                self.mesh.num_stages,
                self.device,
                input_args=plan.crossings[number - 1].metas if number else (),
                output_args=(loss,) if last else plan.crossings[number].metas,
                group=self._group,
            )
            # torch's 1F1B wants as many micro-batches as stages; with fewer it does
            # what GPipe does
            few = count < self.mesh.num_stages
            gpipe = few or self.options.schedule == "gpipe"
            kind: Any = ScheduleGPipe if gpipe else Schedule1F1B
            schedule = kind(stage, count, loss_fn=_first, scale_grads=False)
            self._made = (plan, count), schedule
        return schedule

    def _told(self, outputs: Callable[[], StepOutput] | None) -> StepOutput:
        """The outputs, which the last stage has; the others learn the means in them."""
        box: list[Any] = [None]
        if self._is_last and outputs is not None:
            known = outputs()
            light = {key: known[key] for key in _TOLD if key in known}
            box = [map_tensors(lambda t: t.detach().cpu(), light)]
        group.broadcast_object_list(box, src=self._last, group=self._group)
        if self._is_last and outputs is not None:
            return known
        return StepOutput(map_tensors(lambda t: t.to(self.device), box[0]))

    def _norm(self, optimizer: Any, norm_type: float) -> Any:
        """Of the gradients of all stages; what several have counts once."""
        grads = [
            param.grad
            for each in optimizer.param_groups
            for param in each["params"]
            if param.grad is not None and self._weights.counts(param)
        ]
        norm = sharding.total_norm(grads, norm_type).to(self.device)
        return sharding.norm_over(norm, norm_type, [self._group])


class _Stage(nn.Module):
    """A stage as torch's schedules call it: with the number of a micro-batch."""

    def __init__(self, pipeline: Pipeline, plan: Plan) -> None:
        super().__init__()
        self._owner, self._plan = [pipeline], plan

    def forward(self, *received: Tensor, index: Tensor) -> Any:
        pipeline = self._owner[0]
        batch = pipeline._batches[int(index)]
        result = pipeline._pass.run(lambda: pipeline._step(batch), self._plan, received)
        return result.reshape(1) if isinstance(result, Tensor) else result


def _first(output: Tensor, _: Any) -> Tensor:
    return output[0]


def _shapes(batch: Any) -> tuple[Any, ...]:
    return tuple((path, t.shape, t.dtype) for path, t in named_tensors(batch))
