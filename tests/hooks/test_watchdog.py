"""A run that hangs says where, and ends with status 7."""

import pytest

from devrun.errors import ConfigError
from devrun.hooks import WatchdogHook
from tests.support.noisy import loader, runner


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
