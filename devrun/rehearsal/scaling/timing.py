"""The time of an update here, of few samples, by doing some."""

from __future__ import annotations

import statistics
from contextlib import closing
from time import perf_counter

from devrun.hooks.base import Hook, Priority
from devrun.rehearsal.check.notebook import Notebook
from devrun.rehearsal.check.request import Request
from devrun.rehearsal.check.sizes import rehearsed, smaller
from devrun.run import Run
from devrun.runners.training import build_training

SECONDS = "seconds of an update"


def time_updates(request: Request, note: Notebook) -> None:
    """Write down the median time of an update after the first, and its samples."""
    cfg = request.cfg
    for key, size, most in smaller(cfg, request):
        cfg.merge_from_dict({key: min(size, most)})
    cfg.merge_from_dict(rehearsed(cfg, request, str(note.folder / "run")))
    cfg.merge_from_dict({"load_from": None})
    with note.stage("the timed updates"):
        training = build_training(
            cfg, validate=False, progress=False, limit_batches=request.steps
        )
        training.runner.table.prepare_dry_run()
        clock = _Clock()
        with closing(training.runner) as runner:
            runner.register_hook(clock)
            training.run()
    seconds = statistics.median(clock.seconds[1:])
    note.fact(SECONDS, {"seconds": seconds, "samples": clock.samples})


class _Clock(Hook):
    """The seconds of each update, without reading its batch."""

    priority = Priority.LOWEST

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.samples = 0
        self._start = 0.0

    def before_train_iter(self, runner: Run) -> None:
        self._start = perf_counter()

    def after_train_iter(self, runner: Run) -> None:
        self.seconds.append(perf_counter() - self._start)
        self.samples = runner.outputs["num_samples"]
