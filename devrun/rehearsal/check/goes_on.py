"""Gets past what the user's own code raises, and past what never ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

from devrun.data.seeded import SeededCollate
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    DataError,
    DevrunError,
    NoGradientError,
    is_out_of_memory,
)
from devrun.probes.finding import Finding
from devrun.probes.lifetime import PARTS, NeverEnds, timed
from devrun.probes.notebook import Notebook
from devrun.probes.probe import own_hooks
from devrun.probes.sites import defined, maker_of, of_error
from devrun.probes.sources import names
from devrun.probes.workarounds import refusal
from devrun.rehearsal.check.gradient_path import untrained
from devrun.rehearsal.check.graph_faults import backward_faults, repaired
from devrun.rehearsal.check.left_out import LOOPS, Left, Sources, of_shape
from devrun.rehearsal.check.mended import REFUSALS, Mended
from devrun.runners.training import Training
from devrun.step import StepOutput
from devrun.tensors import batch_size_of

_ENDLESS = "end the loop after a number of turns; --timeout gives it more seconds"
_OTHERS = 16
"""Samples that are tried where the first one cannot be read."""


class _StoppedError(Exception):
    """What never ended is not done again."""


class GoesOn:
    """Notes what an update, a hook or a sample raises, and puts another in its place.

    The statement that raises is left out. Where it is needed, in place of an update
    comes one with a loss of zero, in place of a sample the one before, and of a hook's
    stage nothing; so that the rest is still seen.

    Args:
        seconds: those of the whole rehearsal.
        follows: whether an error is no finding of its own.
        compiles: whether a compiler traces the model, and what is around its calls.
    """

    def __init__(
        self,
        note: Notebook,
        seconds: float,
        follows: Callable[[Exception], bool],
        compiles: bool = False,
    ) -> None:
        self._note, self.seconds = note, seconds / PARTS
        self._follows, self._compiles = follows, compiles
        self._hung = False
        self._sources = Sources()
        self._mended = Mended(self._other)
        self._repaired: set[str] = set()
        """What ended a backward pass, and does not any more."""
        self.reduced: dict[str, int] = {}
        """Key of the config -> the size that it has when nothing is made smaller."""

    def renews(self, error: Exception) -> bool:
        """Whether what cannot be built asks for what numpy has now, and is tried
        again."""
        cause: Any = error.__cause__ or error
        if not self._sources.renew(cause):
            return False
        self._note.found(refusal(cause))
        return True

    def whole(self, error: Exception) -> dict[str, int]:
        """Of the sizes that were made smaller, those that `error` names."""
        text = str(error)
        sizes = self.reduced.items()
        return {key: n for key, n in sizes if re.search(rf"\b{n}\b", text)}

    @contextmanager
    def around(self, training: Training) -> Iterator[None]:
        """Around one run."""
        runner, hung = training.runner, self._hung
        if hung:
            self._stop(training)
        step = self._kept(runner.adapter.train_step, self._update, training)
        runner.adapter.train_step = step  # type: ignore[method-assign]
        for hook in own_hooks(runner):
            for stage in set(hook.get_triggered_stages()):
                if stage not in ("on_exception", "after_backward"):
                    call = getattr(hook, stage)
                    setattr(hook, stage, self._kept(call, lambda *_: None, training))
        runner.table.refresh()  # else before_run is called as it was
        batched = self._batched(training)
        with ExitStack() as patched, patch.object(SeededCollate, "__call__", batched):
            for kind in _kinds(training):
                read = patch.object(kind, "__getitem__", self._read(kind))
                patched.enter_context(read)
            yield

    def _kept(
        self, call: Callable[..., Any], instead: Callable[..., Any], training: Training
    ) -> Callable[..., Any]:
        """`call`, or what is `instead` of it where the user's code breaks in it."""

        session = training.runner.session
        past = partial(repaired, self._mended, self._repaired, session)

        def kept(*args: Any) -> Any:
            while True:
                try:
                    with timed(self.seconds), past():
                        return call(*args)
                except NeverEnds as error:
                    again = self._ended(error, training)
                except _StoppedError:
                    again = False
                except Exception as error:  # noqa: BLE001 - most is raised again
                    again = self._broke(error, training, args[1:])
                # outside of the handlers: what raises next has a cause of its own
                if not again:
                    return instead(*args)

        kept.past = past  # type: ignore[attr-defined]
        return kept

    def _ended(self, error: NeverEnds, training: Training) -> bool:
        """Whether what never ended can be done again, without a loop of it."""
        loop = self._sources.leave_out(error, kinds=LOOPS).gone
        site = loop or of_error(error)
        what = "a loop" if site else "an update"
        why = f"it did not get on within {self.seconds:.0f} s"
        self._note.found(Finding("breaks", "hangs", what, why, _ENDLESS, site))
        if not loop:
            self._stop(training)
        return loop is not None

    def _broke(self, error: Exception, training: Training, given: Any) -> bool:
        """Whether what raised can be done again, without the statement that did."""
        if self._follows(error):
            return False
        if isinstance(error, NoGradientError) and given:
            if self._note.left_out and (self._compiles or self._sources.returns):
                return False  # a number stands in for the loss
            with self._mended:
                untrained(self._note, training, given[0])
            return False
        if isinstance(error, ConfigTypeError) and self._sources.returns:
            return False  # a number stands in for what the step returns
        if isinstance(error, ConfigError) and self._compiles and self._note.left_out:
            return False  # a step stands in for one that updates by itself
        explained: dict[str, Any] = {}
        if isinstance(error.__cause__, IndexError):
            explained, error = {"why": str(error)}, error.__cause__
        site = of_error(error)
        unplaced = isinstance(error, DevrunError) or site is None
        bent = self._mended.lines or self._sources.returns
        if unplaced and bent and of_shape(error):
            return False  # of the shape that something else has now
        own = isinstance(error, DevrunError) or is_out_of_memory(error)
        if own or self.whole(error):
            raise error
        with self._mended:
            known = self._repaired
            ended = backward_faults(error, training, given[0], known) if given else []
        if ended:
            for one in ended:
                self._note.found(one)
            again = ended[0].what not in self._repaired
            self._repaired.add(ended[0].what)
            return again
        if site is None:
            raise error
        follows = self._sources.follows(error, not given)
        follows |= getattr(error, "follows", False)
        # a compiler's tensors do not say of what they come, and what a hook reads or a
        # list should have got is left out
        may = of_shape(error) or isinstance(error, LookupError) or not given
        may |= "require grad" in str(error)
        follows |= self._compiles and self._note.left_out and may
        left, lines = Left(site), self._mended.lines
        if self._compiles or site in lines or not isinstance(error, REFUSALS):
            left = self._sources.leave_out(error, follows)
        if not self._compiles:
            lines.setdefault(site, not (follows and of_shape(error)))
        if not given and isinstance(error, KeyError):  # of a hook
            follows |= self._note.left_out and names(training.runner.model, error)
        if not follows:
            self._note.found(replace(refusal(error), **explained))
        # a compiler's frames do not have the values of the variables
        cuts = left.gone if self._compiles else left.cuts
        self._note.left_out |= bool(given and cuts)
        return left.gone is not None

    def _other(self, site: str, error: Exception) -> None:
        """What else was raised at a line that is mended, and was not told."""
        if not of_shape(error):
            self._note.found(replace(refusal(error), site=site))

    def _update(self, model: Any, batch: Any, *_: Any) -> StepOutput:
        self._note.left_out = True
        loss = next(model.parameters()).detach().sum() * 0  # where the weights are
        return StepOutput(
            loss=loss, log_vars={"loss": loss}, num_samples=batch_size_of(batch) or 1
        )

    def _read(self, kind: type) -> Callable[[Any, Any], Any]:
        """`__getitem__` of a data set: a sample that can be read."""
        given: Any = vars(kind)["__getitem__"]

        @wraps(given)  # whose lines are the user's
        def read(dataset: Any, index: Any) -> Any:
            while True:
                try:
                    return given(dataset, index)
                except Exception as error:
                    if isinstance(error, IndexError) and index >= len(dataset):
                        raise
                    self._note.found(refusal(error))
                    if not self._sources.renew(error):
                        # as a run that resumes does
                        return _another(given, dataset, error)

        return read

    def _batched(self, training: Training) -> Callable[[Any, Any], Any]:
        """`__call__` of a collate function: samples that make a batch."""
        given = SeededCollate.__call__

        def batched(collate: SeededCollate, samples: Any) -> Any:
            while True:
                try:
                    with self._mended:
                        return given(collate, samples)
                except DataError as error:
                    cause: Any = error.__cause__ or error
                    again = of_error(cause) and self._broke(cause, training, ())
                    if again is None:
                        made = maker_of(training.loaders[0])
                        found = replace(refusal(error), kind="raises", site=made)
                        self._note.found(found)
                if not again:
                    samples[:] = [samples[0]] * len(samples)
                    return given(collate, samples)

        return batched

    def _stop(self, training: Training) -> None:
        """Nobody calls the model again, here or in a forked process."""
        self._hung = True

        def stop(*_: Any, **__: Any) -> Any:
            raise _StoppedError("it did not end")

        for name in ("forward", "train_step", "val_step"):
            if hasattr(training.runner.model, name):
                setattr(training.runner.model, name, stop)


def _another(given: Callable[[Any, Any], Any], dataset: Any, error: Exception) -> Any:
    """The first sample that can be read; `error`, if there is none."""
    for index in range(min(len(dataset), _OTHERS)):
        with suppress(Exception):
            return given(dataset, index)
    raise error


def _kinds(training: Training) -> list[type]:
    """The classes of the user's that give the samples."""
    found: dict[type, None] = {}
    for loader in training.loaders:
        one = loader
        while (one := getattr(one, "dataset", None)) is not None:
            if defined(vars(type(one)).get("__getitem__")) is not None:
                found[type(one)] = None
    return list(found)
