"""What configs of these tests name under `custom_imports`."""

import os
import signal
import time

from devrun.errors import DataError
from devrun.hooks import HOOKS, Hook


@HOOKS.register_module()
class Strike(Hook):
    """Lets one process fail at update `at`.

    `how` is a method of this class.
    """

    def __init__(self, how, rank=1, at=6, seconds=0.0):
        self.how, self.rank, self.at, self.seconds = how, rank, at, seconds

    def before_train_iter(self, runner):
        time.sleep(self.seconds)
        if (runner.rank, runner.iter) == (self.rank, self.at):
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
class Pids(Hook):
    def __init__(self, path):
        self.path = path

    def before_run(self, runner):
        with open(f"{self.path}-{runner.rank}", "w") as file:
            file.write(f"{os.getpid()} {os.environ['OMP_NUM_THREADS']}")
