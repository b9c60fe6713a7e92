"""What a run does and says, noted for a test."""

import json
import logging
import re

from devrun.hooks import Hook

STAGES = (
    "before_run",
    "before_train_epoch",
    "before_train_iter",
    "after_train_iter",
    "after_train_epoch",
    "before_val_epoch",
    "before_val_iter",
    "after_val_iter",
    "after_val_epoch",
    "after_run",
)


class Losses(Hook):
    """The losses of all updates, and a stop where wished.

    They are read when the run is over: to read one would make it wait for its device.
    """

    def __init__(self, stop_after=None):
        self.kept = []
        self.stop_after = stop_after

    def after_train_iter(self, runner):
        self.kept.append(runner.outputs["loss"])
        if self.stop_after is not None and runner.iter + 1 >= self.stop_after:
            runner.request_stop("enough")

    @property
    def values(self):
        return [float(loss) for loss in self.kept]


class Trace(Hook):
    def __init__(self):
        self.seen = []

    def note(self, stage, runner):
        self.seen.append((stage, runner.epoch, runner.iter, runner.inner_iter))

    def names(self):
        return [entry[0] for entry in self.seen]


def _noting(stage):
    def method(self, runner):
        self.note(stage, runner)

    return method


for _stage in STAGES:
    setattr(Trace, _stage, _noting(_stage))


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())

    def matching(self, pattern):
        return [m for m in self.messages if re.search(pattern, m)]

    @property
    def text(self):
        return "\n".join(self.messages)

    def __enter__(self):
        """Hear the `devrun` logger."""
        logging.getLogger("devrun").addHandler(self)
        return self

    def __exit__(self, *error):
        logging.getLogger("devrun").removeHandler(self)


def records(work_dir):
    """The records of the one log.json in `work_dir`, meta first."""
    (path,) = work_dir.glob("*.log.json")
    return [json.loads(line) for line in path.read_text().splitlines()]
