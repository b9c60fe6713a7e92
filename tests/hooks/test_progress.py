"""ProgressHook: a bar, or plain lines."""

from __future__ import annotations

import io
import re
import sys
import threading

import pytest
import torch

from devrun.errors import ConfigError
from devrun.hooks.evaluation import EvalHook
from devrun.hooks.logger import TextLoggerHook
from devrun.hooks.progress import ProgressHook
from devrun.log import close_logger, get_logger
from tests.support.points import loader, make_runner


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(*hooks, by_epoch=True, length=2):
    runner = make_runner(*hooks, by_epoch=by_epoch, length=length)
    runner.run([loader()], [("train", 1)])
    return runner


def test_a_terminal_gets_a_bar_with_epoch_speed_and_loss():
    stream, threads = Terminal(), set(threading.enumerate())
    runner = run(ProgressHook(interval=2, refresh=0, stream=stream))
    last = stream.getvalue().rstrip().split("\r")[-1]
    assert last.startswith("epoch 2/2: 100%")
    assert "8/8" in last
    assert "it/s" in last
    assert "loss 0." in last
    assert runner.lines.matching("progress") == []
    assert set(threading.enumerate()) <= threads  # tqdm's monitor was not started


def test_the_bar_shows_the_average_that_the_loggers_took():
    stream = Terminal()
    logger = TextLoggerHook(interval=4)
    runner = run(logger, ProgressHook(refresh=0, stream=stream), length=1)
    (line,) = runner.lines.matching("^Epoch")
    loss = line.split("loss: ")[1][:6]
    assert f"loss {loss}" in stream.getvalue()


def test_a_long_refresh_draws_only_start_and_end():
    stream = Terminal()
    run(ProgressHook(refresh=1e9, stream=stream))
    assert stream.getvalue().count("it/s") <= 3


@pytest.mark.parametrize("hook", [{"bar": False}, {"bar": None}])
def test_plain_lines_where_there_is_no_terminal_or_none_is_wanted(hook):
    stream = Terminal() if hook["bar"] is False else io.StringIO()
    runner = run(ProgressHook(interval=4, stream=stream, **hook))
    assert stream.getvalue() == ""
    first, second = runner.lines.matching("progress: ")
    assert first.startswith("progress: 4/8 iterations (50%), eta 0:00:0")
    assert "it/s, loss 0." in second


def test_no_plain_lines_beside_the_text_log():
    runner = run(TextLoggerHook(interval=2), ProgressHook(bar=False, interval=2))
    assert runner.lines.matching("progress") == []


def test_the_loss_is_read_no_more_often_than_the_interval():
    class Counted(torch.Tensor):
        reads = 0

        def __float__(self):
            Counted.reads += 1
            return 0.5

    hook = ProgressHook(interval=3, refresh=0, stream=Terminal())
    runner = make_runner(hook, length=2)
    hook.before_run(runner)
    runner.outputs["loss"] = torch.tensor(0.5).as_subclass(Counted)
    for runner._iter in range(9):
        hook.after_train_iter(runner)
    hook.after_run(runner)
    assert Counted.reads == 3


def evaluated(stream, *, bar=None, data=None, **kwargs):
    hooks = (EvalHook(loader() if data is None else data), TextLoggerHook())
    return run(*hooks, ProgressHook(refresh=0, stream=stream, bar=bar, **kwargs))


def test_an_evaluation_has_a_bar_of_its_own_that_goes_again():
    stream = Terminal()
    evaluated(stream)
    drawn = re.split(r"[\r\n]", stream.getvalue())
    bars = [part for part in drawn if part.startswith("eval: ")]
    assert {"1/4", "2/4", "3/4", "4/4"} <= {bar.split("| ")[1][:3] for bar in bars}
    assert sum("4/4" in bar for bar in bars) >= 2  # in each of two epochs
    assert drawn[-2].startswith("epoch 2/2: 100%") or "8/8" in stream.getvalue()


def test_a_val_phase_has_the_same_bar():
    stream = Terminal()
    runner = make_runner(ProgressHook(refresh=0, stream=stream), length=1)
    runner.run([loader(), loader(count=6)], [("train", 1), ("val", 1)])
    assert re.search(r"val: +100%.*2/2", stream.getvalue())


def test_an_evaluation_without_a_terminal_or_that_fails_leaves_no_bar():
    stream = io.StringIO()
    evaluated(stream)
    assert stream.getvalue() == ""
    stream, data = Terminal(), loader()
    data.collate_fn = lambda items: 1 / 0
    with pytest.raises(Exception, match="zero"):
        evaluated(stream, data=data)
    last = [part for part in re.split(r"[\r\n]", stream.getvalue()) if part.strip()]
    assert not last[-1].startswith("eval")


def test_the_bar_is_closed_when_the_run_fails():
    stream = Terminal()
    hook = ProgressHook(refresh=0, stream=stream)
    runner = make_runner(hook)
    data = loader()
    data.collate_fn = lambda items: 1 / 0
    with pytest.raises(Exception, match="zero"):
        runner.run([data], [("train", 1)])
    assert hook._bar is None
    assert stream.getvalue().endswith("\n")


def test_log_lines_and_the_bar_do_not_mix(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    logger = get_logger("progress-test")
    runner = make_runner(
        TextLoggerHook(interval=2), ProgressHook(refresh=0, stream=stream), length=1
    )
    runner.logger = logger
    try:
        runner.run([loader()], [("train", 1)])
    finally:
        close_logger("progress-test")
    lines = [part for part in stream.getvalue().split("\r") if "Epoch [" in part]
    assert len(lines) == 2
    assert all(line.startswith("20") and line.endswith("\n") for line in lines)


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match="interval"):
        ProgressHook(interval=0)
