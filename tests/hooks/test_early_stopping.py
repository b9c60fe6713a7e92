import math

import pytest

from devrun.errors import ConfigError, UnknownNameError
from devrun.hooks.early_stopping import EarlyStoppingHook
from devrun.hooks.evaluation import EvalHook
from devrun.hooks.logger import TextLoggerHook
from tests.support.points import loader, make_runner


def scores(*values, by_epoch=True):
    """An evaluation that gives `values` one after the other."""
    given = iter(values)
    return EvalHook(
        loader(), test_fn=lambda net, data: {"acc": next(given)}, by_epoch=by_epoch
    )


def run(*hooks, by_epoch=True, length=9, **kwargs):
    runner = make_runner(*hooks, by_epoch=by_epoch, length=length, **kwargs)
    runner.run([loader()], [("train", 1)])
    return runner


@pytest.mark.parametrize("logged", [True, False])
def test_an_epoch_run_ends_after_patience_evaluations_without_gain(logged):
    hooks = [scores(0.1, 0.3, 0.2, 0.3, 0.9), EarlyStoppingHook("acc", patience=2)]
    runner = run(*hooks, *([TextLoggerHook()] if logged else []))
    assert runner.epoch == 4
    assert "acc (0.3 at best) did not improve in 2 evaluations" in runner.stop_reason


def test_an_iter_run_ends_too():
    hooks = scores(0.3, 0.2, 0.1, by_epoch=False), EarlyStoppingHook("acc", patience=2)
    runner = run(*hooks, TextLoggerHook(by_epoch=False), by_epoch=False)
    assert runner.iter == 3


@pytest.mark.parametrize("least", [{"min_epochs": 4}, {"min_iters": 13}])
def test_it_waits_for_the_least(least):
    hook = EarlyStoppingHook("acc", patience=1, **least)
    runner = run(scores(0.3, 0.2, 0.1, 0.2, 0.1), hook)
    assert runner.epoch == 4
    assert len(loader()) == 4


def test_a_gain_must_exceed_min_delta():
    hook = EarlyStoppingHook("acc", patience=2, min_delta=0.1)
    assert run(scores(0.5, 0.55, 0.59, 1), hook).epoch == 3


def test_rule_less():
    hook = EarlyStoppingHook("acc", rule="less", patience=1)
    assert run(scores(0.5, 0.2, 0.3), hook).epoch == 3


def test_not_a_number_is_no_improvement():
    hook = EarlyStoppingHook("acc", patience=2)
    assert run(scores(math.nan, math.nan, 1.0), hook).epoch == 2
    assert (
        "never finite"
        in run(scores(math.nan), EarlyStoppingHook("acc", patience=1)).stop_reason
    )


def test_val_epochs_are_looked_at_where_nothing_evaluates():
    hook = EarlyStoppingHook("loss", patience=1, min_delta=1e9)
    runner = make_runner(hook, TextLoggerHook(), length=5)
    runner.run([loader(), loader()], [("train", 1), ("val", 1)])
    assert runner.epoch == 2


def test_state_goes_on_in_a_resumed_run():
    first = EarlyStoppingHook("acc", patience=3)
    run(scores(0.9, 0.1), first, length=2)
    second = EarlyStoppingHook("acc", patience=3)
    second.load_state_dict(first.state_dict())
    assert run(scores(0.2, 0.3, 0.4), second).epoch == 2


def test_a_result_that_is_not_there_is_named_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'acc'"):
        run(scores(0.5), EarlyStoppingHook("accs"))


def test_an_evaluation_without_results_is_passed_over():
    hooks = EvalHook(loader(), test_fn=lambda net, data: {}), EarlyStoppingHook("acc")
    runner = run(*hooks, length=2)
    assert runner.lines.matching("no results of the evaluation to follow")


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="patience"):
        EarlyStoppingHook("acc", patience=0)
    with pytest.raises(ConfigError, match="min_delta"):
        EarlyStoppingHook("acc", min_delta=-1)
    with pytest.raises(ConfigError, match="rule="):
        EarlyStoppingHook("speed")
