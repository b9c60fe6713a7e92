"""A run that hangs says where, and ends with status 7."""

import re

import pytest

from devrun.errors import ConfigError
from devrun.hooks import WatchdogHook
from tests.support import zygote
from tests.support.noisy import loader, runner

SCRIPT = """
import sys, threading
from devrun.hooks import EvalHook, Hook, WatchdogHook
from tests.support.noisy import Augmented, loader, runner

class Stuck(Hook):
    def after_train_iter(self, runner):
        if runner.iter == 3 and WHERE == "hook":
            wait_for_nothing()

class StuckData(Augmented):
    def __getitem__(self, index):
        if index == 17:
            wait_for_nothing()
        return super().__getitem__(index)

def wait_for_nothing():
    threading.Event().wait()

WHERE = sys.argv[1]
run = runner(True, 2)
watchdog = WatchdogHook(timeout=2.0, first_timeout=60)
watchdog.on_hang.append(lambda error: print("told:", error, flush=True))
run.register_hook(watchdog)
run.register_hook(Stuck())
data = loader(num_workers=2) if WHERE == "worker" else loader()
if WHERE == "worker":
    from torch.utils.data import DataLoader
    data = DataLoader(StuckData(), batch_size=4, num_workers=2)
if WHERE == "evaluation":
    run.register_hook(EvalHook(DataLoader(StuckData(), batch_size=4)))
run.run([data])
"""


@pytest.mark.parametrize(
    ("where", "said"), [("hook", "wait_for_nothing"), ("worker", "_next_data")]
)
def test_it_ends_with_stacks_and_status_7(where, said):
    done = zygote.run(["-c", SCRIPT, where])
    assert done.returncode == 7, done.stderr
    assert re.search(r"told: no iteration for \d+ s \(epoch 1, iteration", done.stdout)
    assert f"in {said}" in done.stderr
    assert "Thread" in done.stderr


def test_a_run_that_moves_is_left_alone():
    run = runner(True, 2)
    run.register_hook(WatchdogHook(timeout=30))
    run.run([loader()])
    assert run.iter == 12


def test_an_iteration_costs_nothing():
    assert WatchdogHook().get_triggered_stages() == [
        "before_run",
        "on_exception",
        "after_run",
    ]


@pytest.mark.parametrize("timeout", [0, -1, "10", True])
def test_a_wrong_time_is_refused(timeout):
    with pytest.raises(ConfigError, match="timeout must be"):
        WatchdogHook(timeout)
