"""One function at one stage; the cache is emptied where it was asked for."""

import pytest

from devrun.config.numbers import parsed_duration
from devrun.devices.cpu import CPUAdapter
from devrun.errors import ConfigError
from devrun.hooks.simple import ClosureHook, EmptyCacheHook, MaxTimeHook
from tests.support.runs import TracedRun


def test_the_function_gets_the_runner_at_its_stage():
    seen = []
    hook = ClosureHook("before_train_epoch", lambda runner: seen.append(runner.epoch))
    TracedRun(hook, max_epochs=3).run()
    assert seen == [0, 1, 2]
    assert hook.get_triggered_stages() == ["before_train_epoch"]


def test_a_generic_stage_covers_train_and_val():
    seen = []
    loop = TracedRun(
        ClosureHook("after_iter", lambda r: seen.append(r.mode)), max_epochs=1
    )
    loop.run(workflow=("train", "val"))
    assert seen == ["train"] * 4 + ["val"] * 4


def test_an_exception_stage_gets_the_exception():
    seen = []

    def fail(runner):
        raise KeyError("broken")

    loop = TracedRun(
        ClosureHook("after_train_iter", fail),
        ClosureHook("on_exception", lambda runner, error: seen.append(error)),
        max_epochs=1,
    )
    with pytest.raises(KeyError):
        loop.run()
    assert isinstance(seen[0], KeyError)


def test_an_unknown_stage_is_refused_with_the_nearest():
    with pytest.raises(KeyError, match="did you mean 'after_train_iter'"):
        ClosureHook("after_trian_iter", print)


def test_what_cannot_be_called_is_refused():
    with pytest.raises(ConfigError, match="fn must be a function, got 3"):
        ClosureHook("after_iter", 3)


@pytest.mark.parametrize(
    ("options", "times"),
    [
        ({}, 2),
        ({"after_epoch": False}, 0),
        ({"before_epoch": True}, 4),
        ({"after_iter": True}, 2 + 2 * 4),
        ({"before_epoch": True, "after_epoch": False, "after_iter": True}, 2 + 2 * 4),
    ],
)
def test_it_is_asked_at_the_chosen_points(options, times):
    asked = []

    class Noting(CPUAdapter):
        def empty_cache(self):
            asked.append("empty_cache")

    TracedRun(EmptyCacheHook(**options), max_epochs=2, length=4, device=Noting()).run()
    assert len(asked) == times


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("2h", 7200),
        ("1h30m", 5400),
        ("1d2s", 86402),
        (1.5, 1.5),
        ("", None),
        ("h", None),
    ],
)
def test_durations(given, seconds):
    assert parsed_duration(given) == seconds


def test_a_time_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="max_time must be seconds, or such as 2h"):
        MaxTimeHook("soon")


def test_a_hook_shows_its_arguments():
    assert repr(MaxTimeHook("2h")) == "MaxTimeHook(max_time='2h')"
