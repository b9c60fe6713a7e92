"""PopTorch's executors of one model, of which one at a time is on the IPUs."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any, List, Tuple

import torch
from torch import Tensor

from devrun.blame import users_line
from devrun.devices.explain import STEP_FAILURES, explain
from devrun.devices.ipu.batch import Flat, ShapesError, differing, rebuild
from devrun.devices.ipu.step import Call, DeviceStep
from devrun.errors import (
    ConfigError,
    DeviceMemoryError,
    DeviceUnavailableError,
    DevrunError,
    UnsupportedFeatureError,
)
from devrun.text import joined

_Kept = Tuple[List[bool], List[bool]]

logger = logging.getLogger("devrun")


class Executor:
    """One compiled graph: PopTorch's object and how its step was called."""

    def __init__(self, inner: Any, call: Call, kept: _Kept) -> None:
        self.inner = inner
        self.call = call
        self.kept = kept
        self.stale = False
        """Whether the host's weights are newer than those on the IPUs."""
        self.changing: set[str] = set()
        """What is no tensor, and was another than that of the graph."""

    @property
    def rows(self) -> int:
        """Rows of the combined batch it was compiled for."""
        return self.call.flat.shapes[0][0] if self.call.flat.shapes[0] else 1

    @property
    def attached(self) -> bool:
        return bool(self.inner.isCompiled() and self.inner.isAttachedToDevice())

    def takes(self, flat: Flat) -> bool:
        """Whether it was compiled for tensors of these shapes, but for the rows."""
        known = self.call.flat
        return flat.kinds == known.kinds and not differing(flat, known, any_rows=True)

    def check(self, flat: Flat, *, any_rows: bool = False) -> None:
        """Refuse a batch of other shapes than the graph's.

        Raises:
            UnsupportedFeatureError: naming the tensor, both shapes and what to do.
        """
        known = self.call.flat
        if flat.kinds != known.kinds:
            raise UnsupportedFeatureError(
                f"a batch has the tensors {', '.join(flat.kinds)}, but the graph was "
                f"compiled for {', '.join(known.kinds)}: every batch must have the "
                "same on an IPU"
            )
        if different := differing(flat, known, any_rows=any_rows):
            first = different[0]
            raise ShapesError(
                f"{first.name} has the shape {first.shape}, but the graph was compiled "
                f"for {first.other}, and shapes are static on an IPU",
                different,
            )
        now, then = flat.constants, known.constants
        for path in now.keys() | then.keys():
            told = path in self.changing or isinstance(now.get(path), str)  # a name
            if not told and now.get(path) != then.get(path):
                self.changing.add(path)
                logger.warning(
                    "ipu: %s is no tensor and changes from batch to batch; the graph "
                    "keeps its first value",
                    path,
                )


class Executors:
    """Makes executors for `module` and moves the one that runs onto the IPUs."""

    def __init__(self, sdk: Any, module: DeviceStep) -> None:
        self.sdk, self.module = sdk, module
        self.trainer: Executor | None = None
        self.evaluators: list[Executor] = []
        self.host_is_current = True
        """Whether the host has what training has made of the weights."""
        self._warned: set[str] = set()

    def compile_training(self, call: Call, options: Any, optimizer: Any) -> Executor:
        self._prepare(call)
        inner = self.sdk.trainingModel(self.module, options, optimizer)
        trainer = Executor(inner, call, _kept(self.module))
        try:
            self._compile(trainer)
        except BaseException:
            inner.destroy()
            # which leaves a model that was not compiled wrapped
            self.sdk._impl.unwrapModelIfNecessary(self.module)
            raise
        self.trainer = trainer
        return trainer

    def compile_evaluation(self, call: Call, options: Any) -> Executor:
        self._prepare(call)
        inner = self.sdk.inferenceModel(self.module, options.clone())
        made = Executor(inner, call, _kept(self.module))
        try:
            self._compile(made)
        except (DevrunError, self.sdk.Error) as error:
            kind = type(error) if isinstance(error, DevrunError) else ConfigError
            raise kind(
                f"the evaluation cannot be compiled: {joined(error)}; to evaluate on "
                "the CPU instead, set ipu.evaluate_on: host",
                key="evaluate_on",
            ) from error
        self.evaluators.append(made)
        return made

    def run(self, executor: Executor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs of one call, after whatever must move to the IPUs for it."""
        try:
            self._activate(executor)
            found: Any = executor.inner(*(tensor.contiguous() for tensor in tensors))
        except (self.sdk.Error, AssertionError, *STEP_FAILURES) as error:
            explained = self._explained(error, executor.call, tensors)
            if explained is None:
                raise
            raise explained from error
        if executor is self.trainer:
            self.host_is_current = False
        return tuple(found) if isinstance(found, (tuple, list)) else (found,)

    def outdated(self, executor: Executor) -> bool:
        """Whether the model has changed in what a graph keeps as it was compiled."""
        return _kept(self.module) != executor.kept

    def set_optimizer(self, optimizer: Any) -> None:
        """Have the training executor take the present hyper-parameters."""
        if self.trainer is None:
            return
        try:
            self.trainer.inner.setOptimizer(optimizer)
        except self.sdk.Error as error:
            raise ConfigError(
                f"the optimizer's settings cannot change so on an IPU: {joined(error)}"
            ) from error

    def to_host(self) -> None:
        """Fetch what training has made of the weights, if the host lacks it."""
        if self.host_is_current or self.trainer is None:
            return
        self.trainer.inner.copyWeightsToHostIfNeeded()
        self.host_is_current = True

    def to_device(self) -> None:
        """Have the host's weights sent to each executor before it runs next."""
        self.host_is_current = True
        for executor in self._all():
            executor.stale = True

    def close(self) -> None:
        """Fetch the weights and forget the executors."""
        for executor in self._all():
            executor.inner.destroy()
        self.trainer, self.evaluators = None, []
        self.host_is_current = True

    def _all(self) -> list[Executor]:
        trainer = [] if self.trainer is None else [self.trainer]
        return [*trainer, *self.evaluators]

    def _prepare(self, call: Call) -> None:
        logger.info("compiling a graph for the IPU (%s)", call.mode)
        vars(self.module)["call"] = call
        self._make_room(None)

    def _activate(self, executor: Executor) -> None:
        self._make_room(executor)
        if not executor.attached:
            executor.inner.attachToDevice()  # sends the host's weights
        elif executor.stale:
            executor.inner.copyWeightsToDevice()
        executor.stale = False

    def _make_room(self, wanted: Executor | None) -> None:
        """Take the others off the IPUs: they share them."""
        for executor in self._all():
            if executor is not wanted and executor.attached:
                executor.inner.detachFromDevice()  # fetches what training changed
                if executor is self.trainer:
                    self.host_is_current = True

    def _compile(self, executor: Executor) -> None:
        tensors = executor.call.flat.tensors
        try:
            executor.inner.compile(*tensors)
        except (self.sdk.Error, AssertionError, *STEP_FAILURES) as error:
            explained = self._explained(error, executor.call, tensors)
            if explained is None:
                raise
            raise explained from error
        for found in executor.call.watch.findings:
            if (key := found.site or found.what) not in self._warned:
                self._warned.add(key)
                logger.warning("%s", found.message("ipu"))

    def _explained(
        self, error: BaseException, call: Call, tensors: Sequence[Tensor]
    ) -> DevrunError | None:
        """One line for the user, or None where the error needs none."""
        if isinstance(error, DevrunError):
            return None
        text = joined(error)
        if "Out of memory" in text:
            return DeviceMemoryError(
                f"ipu: {first_sentences(text)}: try a smaller micro-batch, half "
                "precision, train_ckpt_nodes, a smaller availableMemoryProportion, or "
                "more IPUs (train_split_edges)"
            )
        if "Failed to acquire" in text:
            return DeviceUnavailableError(
                f"ipu: {first_sentences(text)}: use fewer replicas (--ipu-replicas), "
                "or fewer IPUs for each (train_split_edges)"
            )
        step = self.module.step
        if isinstance(error, STEP_FAILURES):  # an index out of range, and the like
            batch = rebuild(call.flat.template, tensors)
            return explain(error, batch, step, "ipu", dict)
        place = users_line(error)
        at = f" at {place}" if place else ""
        return UnsupportedFeatureError(
            f"{step.model_name} cannot run on an IPU{at}: {first_sentences(text)}"
        )


def first_sentences(text: str) -> str:
    """The message without PopTorch's own source lines and advice to its vendor."""
    text = re.sub(r"^In \S+:\d+: '\w+': ", "", text)
    advice = r" Not all operations are| If you believe| Error raised in:"
    return re.split(advice, text)[0]


def _kept(module: DeviceStep) -> _Kept:
    """What is frozen, and the mode of each part: constants of a graph."""
    parts = list(module.step.modules())
    params = (param for part in parts for param in part._parameters.values())
    # read so that PopTorch does not see it: it would fetch the weights first
    attribute: Any = torch.Tensor.requires_grad
    with torch._C.DisableTorchFunctionSubclass():
        free = [attribute.__get__(param) for param in params if param is not None]
    return free, [part.training for part in parts]
