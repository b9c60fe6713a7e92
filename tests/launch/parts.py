"""What configs of these tests name under `custom_imports`."""

from __future__ import annotations

import os
import signal
import time

from devrun.errors import DataError
from devrun.hooks import HOOKS, Hook


@HOOKS.register_module()
class Strike(Hook):
    """Lets one process fail at update `at`, in its first start only by default.

    `how` is a method of this class.
    """

    def __init__(self, how, rank=1, at=6, starts=1, seconds=0.0):
        self.how, self.rank, self.at = how, rank, at
        self.starts, self.seconds = starts, seconds

    def before_train_iter(self, runner):
        time.sleep(self.seconds)
        start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
        if (runner.rank, runner.iter) == (self.rank, self.at) and start < self.starts:
            getattr(self, self.how)()

    def dies(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def raises(self):
        raise DataError("sample 7 is broken")

    def freezes(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def stalls(self):
        time.sleep(1000)


@HOOKS.register_module()
class Took(Hook):
    """Appends a line for each update: start, update, and the samples of `Numbered`."""

    def __init__(self, path):
        self.path = path

    def after_train_iter(self, runner):
        rows = [round(100 * float(row[0])) for row in runner.data_batch[0]]
        start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        with open(f"{self.path}-{runner.rank}", "a") as file:
            file.write(" ".join(map(str, [start, runner.iter + 1, *rows])) + "\n")


@HOOKS.register_module()
class Pids(Hook):
    """Writes the number of the process and of its threads."""

    def __init__(self, path):
        self.path = path

    def before_run(self, runner):
        with open(f"{self.path}-{runner.rank}", "w") as file:
            file.write(f"{os.getpid()} {os.environ['OMP_NUM_THREADS']}")
