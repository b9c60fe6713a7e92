"""PopTorch's executors of one model, of which one at a time is on the IPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from devrun.devices.explain import STEP_FAILURES
from devrun.devices.explain import explain as failure_of_step
from devrun.devices.ipu.batch import (
    Flat,
    ShapesError,
    changed_constants,
    differing,
    rebuild,
)
from devrun.devices.ipu.explain import explain
from devrun.devices.ipu.report import CompileReport
from devrun.devices.ipu.step import Call
from devrun.errors import ConfigError, DevrunError, UnsupportedFeatureError
from devrun.text import joined

_Kept = tuple[list[bool], list[bool]]

logger = logging.getLogger("devrun")


class Executor:
    """One compiled graph: PopTorch's object and how its step was called."""

    def __init__(self, inner: Any, call: Call, what: str, kept: _Kept) -> None:
        self.inner = inner
        self.call = call
        self.what = what
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

    def check(self, flat: Flat, *, any_rows: bool = False) -> None:
        """Refuse a batch of other shapes than the graph's.

        Raises:
            UnsupportedFeatureError: naming the tensor, both shapes and what to do.
        """
        known = self.call.flat
        if flat.names != known.names:
            raise UnsupportedFeatureError(
                f"a batch has the tensors {', '.join(flat.names)}, but the graph was "
                f"compiled for {', '.join(known.names)}: every batch must have the "
                "same on an IPU"
            )
        for name, now, then in zip(
            flat.names, flat.tensors, known.tensors, strict=True
        ):
            if now.dtype != then.dtype:
                raise UnsupportedFeatureError(
                    f"{name} is of {now.dtype}, but the graph was compiled for "
                    f"{then.dtype}: give every batch the same types"
                )
        if different := differing(flat, known, any_rows=any_rows):
            first = different[0]
            raise ShapesError(
                f"{first.name} has the shape {first.shape}, but the graph was compiled "
                f"for {first.other}, and shapes are static on an IPU",
                different,
            )
        for path in changed_constants(known.template, flat.template):
            if path not in self.changing:
                self.changing.add(path)
                logger.warning(
                    "ipu: %s is no tensor and changes from batch to batch; the graph "
                    "keeps its first value",
                    path,
                )


class Executors:
    """Makes executors for `module` and moves the one that runs onto the IPUs.

    Args:
        module: the `DeviceStep`.
        place: called before a compilation with True for training, to put the blocks of
            the split on the model.
    """

    def __init__(
        self, sdk: Any, module: nn.Module, place: Callable[[bool], None]
    ) -> None:
        self.sdk, self.module, self._place = sdk, module, place
        self.trainer: Executor | None = None
        self.evaluators: list[Executor] = []
        self.host_is_current = True
        """Whether the host has what training has made of the weights."""
        self._warned: set[str] = set()

    def compile_training(
        self, call: Call, options: Any, optimizer: Any, tensors: Sequence[Tensor]
    ) -> Executor:
        self._place(True)
        vars(self.module)["call"] = call
        self._make_room(None)
        inner = self.sdk.trainingModel(self.module, options, optimizer)
        trainer = Executor(inner, call, "training", _kept(self.module))
        try:
            self._compiled(trainer, options, tensors)
        except BaseException:
            inner.destroy()
            # which leaves a model that was not compiled wrapped
            self.sdk._impl.unwrapModelIfNecessary(self.module)
            raise
        self.trainer = trainer
        return trainer

    def compile_evaluation(
        self, call: Call, options: Any, tensors: Sequence[Tensor]
    ) -> Executor:
        self._place(False)
        vars(self.module)["call"] = call
        self._make_room(None)
        inner = self.sdk.inferenceModel(self.module, options.clone())
        made = Executor(inner, call, "evaluation", _kept(self.module))
        try:
            self._compiled(made, options, tensors)
        except (DevrunError, self.sdk.Error) as error:
            raise _only_evaluation(error) from error
        self.evaluators.append(made)
        return made

    def run(self, executor: Executor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs of one call, after whatever must move to the IPUs for it."""
        try:
            self._activate(executor)
            found: Any = executor.inner(*(tensor.contiguous() for tensor in tensors))
        except (self.sdk.Error, AssertionError, *STEP_FAILURES) as error:
            batch = rebuild(executor.call.flat.template, tensors)
            explained = self._explained(error) or self._failure(error, batch)
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
            reason = joined(error)
            raise ConfigError(
                f"the optimizer's settings cannot change so on an IPU: {reason}"
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

    def _compiled(
        self, executor: Executor, options: Any, tensors: Sequence[Tensor]
    ) -> None:
        cache = options._Popart.options.get("cachePath")
        report = CompileReport(
            executor.inner, self.sdk, what=executor.what, cache_dir=cache
        )
        try:
            with report:
                executor.inner.compile(*tensors)
        except (self.sdk.Error, AssertionError, RuntimeError) as error:
            explained = self._explained(error)
            if explained is None:
                raise
            raise explained from error
        for found in executor.call.frozen:
            if (key := found.site or found.what) not in self._warned:
                self._warned.add(key)
                logger.warning("%s", found.message("ipu"))
        if options.connection_type == self.sdk.ConnectionType.Never:
            raise UnsupportedFeatureError(
                "ipu: the graph is compiled for an offline target, on which nothing "
                "runs (useOfflineIpuTarget, connectionType Never): the executable is "
                f"in {cache or 'no directory, as enableExecutableCaching is not set'}"
            )

    def _failure(self, error: BaseException, batch: Any) -> DevrunError | None:
        """As on every device: an index out of range, and the like."""
        step: Any = self.module.step
        return failure_of_step(error, batch, step, "ipu", dict)

    def _explained(self, error: BaseException) -> DevrunError | None:
        module: Any = self.module
        explained = explain(error, module.step, self.sdk)
        if explained is None and isinstance(error, AssertionError):
            return ConfigError(f"ipu: {joined(error)}")
        return explained


def _only_evaluation(error: Exception) -> DevrunError:
    """What to do where only the graph for evaluation cannot be compiled."""
    kind = type(error) if isinstance(error, DevrunError) else UnsupportedFeatureError
    reason = joined(error)
    return kind(
        f"the evaluation cannot be compiled: {reason}; to evaluate on the CPU instead, "
        "set ipu.evaluate_on: host",
        key="evaluate_on",
    )


def _kept(module: nn.Module) -> _Kept:
    """What is frozen, and the mode of each part: constants of a graph."""
    step: Any = module.step
    parts = list(step.modules())
    params = (param for part in parts for param in part._parameters.values())
    # read so that PopTorch does not see it: it would fetch the weights first
    requires_grad = torch._C.TensorBase.requires_grad.__get__  # type: ignore[attr-defined]
    with torch._C.DisableTorchFunctionSubclass():
        free = [requires_grad(param) for param in params if param is not None]
    return free, [part.training for part in parts]
