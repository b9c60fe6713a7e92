"""ProgressHook: a bar where there is a terminal."""

import functools
import io
import re
import sys
import threading

import pytest

from devrun.hooks import progress
from devrun.hooks.evaluation import EvalHook
from devrun.hooks.logger import TextLoggerHook
from devrun.hooks.progress import ProgressHook
from devrun.log import close_logger, get_logger
from tests.support.points import loader, make_runner


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """What is drawn. pytest sets stderr anew before a test, so it is set for bars."""
    stream = Terminal()
    drawn = functools.partial(progress.Bar, file=stream)
    monkeypatch.setattr(progress, "Bar", drawn)
    monkeypatch.setattr(progress, "REFRESH", 0)
    return stream


def run(*hooks, by_epoch=True, length=2):
    runner = make_runner(*hooks, by_epoch=by_epoch, length=length)
    runner.run([loader()], [("train", 1)])
    return runner


def test_a_terminal_gets_a_bar_with_epoch_speed_and_the_loss_of_the_loggers(screen):
    threads = set(threading.enumerate())
    runner = run(TextLoggerHook(interval=4), ProgressHook(), length=1)
    last = screen.getvalue().rstrip().split("\r")[-1]
    assert last.startswith("epoch 1/1: 100%")
    assert "4/4" in last
    assert "it/s" in last
    (line,) = runner.lines.matching("^Epoch")
    assert f"loss={line.split('loss: ')[1][:6]}" in last
    assert set(threading.enumerate()) <= threads  # tqdm's monitor was not started


def test_a_long_refresh_draws_only_start_and_end(screen, monkeypatch):
    monkeypatch.setattr(progress, "REFRESH", 1e9)
    run(ProgressHook())
    assert screen.getvalue().count("it/s") <= 3


@pytest.mark.parametrize("bar", [False, None])
def test_no_bar_where_there_is_no_terminal_or_none_is_wanted(monkeypatch, bar):
    stream = Terminal() if bar is False else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    run(EvalHook(loader()), ProgressHook(bar))
    assert stream.getvalue() == ""


def test_an_evaluation_has_a_bar_of_its_own_that_goes_again(screen):
    run(EvalHook(loader()), TextLoggerHook(), ProgressHook())
    drawn = re.split(r"[\r\n]", screen.getvalue())
    bars = [part for part in drawn if part.startswith("eval: ")]
    assert {"1/4", "2/4", "3/4", "4/4"} <= {bar.split("| ")[1][:3] for bar in bars}
    assert sum("4/4" in bar for bar in bars) >= 2  # in each of two epochs
    assert drawn[-2].startswith("epoch 2/2: 100%") or "8/8" in screen.getvalue()


def test_an_evaluation_that_fails_leaves_no_bar(screen):
    data = loader()
    data.collate_fn = lambda items: 1 / 0
    with pytest.raises(Exception, match="zero"):
        run(EvalHook(data), ProgressHook())
    last = [part for part in re.split(r"[\r\n]", screen.getvalue()) if part.strip()]
    assert not last[-1].startswith("eval")
    assert screen.getvalue().endswith("\n")


def test_log_lines_and_the_bar_do_not_mix(screen, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen)
    logger = get_logger("progress-test")
    runner = make_runner(TextLoggerHook(interval=2), ProgressHook(), length=1)
    runner.logger = logger
    try:
        runner.run([loader()], [("train", 1)])
    finally:
        close_logger("progress-test")
    lines = [part for part in screen.getvalue().split("\r") if "Epoch [" in part]
    assert len(lines) == 2
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    assert all(line.endswith("\n") for line in lines)
