"""Real traces of torch.profiler: where they go, and what they cover."""

import json
import logging

import pytest

from devrun.errors import ConfigError
from devrun.hooks.profiler import ProfilerHook
from devrun.hooks.simple import ClosureHook
from tests.support.runs import TracedRun


def names(path):
    events = json.loads(path.read_text())["traceEvents"]
    return [event["name"] for event in events if "name" in event]


def steps(path):
    return len({name for name in names(path) if name.startswith("ProfilerStep#")})


def run(tmp_path, *, epochs=2, **options):
    loop = TracedRun(
        ProfilerHook(**options), max_epochs=epochs, length=3, work_dir=str(tmp_path)
    )
    loop.runner.timestamp = "20240101_000000"
    return loop.run()


def test_a_trace_of_the_first_epoch_is_written_to_work_dir(tmp_path):
    run(tmp_path)
    (trace,) = tmp_path.iterdir()
    assert trace.name == "20240101_000000.pt.trace.json"
    assert names(trace).count("Optimizer.step#SGD.step") == 3
    assert "aten::linear" in names(trace)


def test_by_iteration_only_that_many_are_recorded(tmp_path):
    run(tmp_path, by_epoch=False, profile_iters=2)
    (trace,) = tmp_path.iterdir()
    assert names(trace).count("Optimizer.step#SGD.step") == 2


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_a_schedule_records_each_active_stretch_in_a_file(tmp_path):
    schedule = {"wait": 1, "warmup": 1, "active": 1, "repeat": 2}
    run(tmp_path, by_epoch=False, profile_iters=6, schedule=schedule)
    first, second = sorted(tmp_path.iterdir())
    assert second.name == "20240101_000000_2.pt.trace.json"
    assert steps(first) == steps(second) == 1


def test_log_trace_logs_the_table_and_writes_no_file(tmp_path, caplog):
    handler = {"type": "log_trace", "sort_by": "self_cpu_time_total", "row_limit": 5}
    with caplog.at_level(logging.INFO, logger="devrun.test"):
        run(tmp_path, on_trace_ready=handler)
    assert "Self CPU time total" in caplog.text
    assert not list(tmp_path.iterdir())


def test_the_trace_is_written_when_the_run_fails(tmp_path):
    def fail(runner):
        if runner.iter == 1:
            raise ZeroDivisionError

    loop = TracedRun(
        ProfilerHook(),
        ClosureHook("after_train_iter", fail),
        max_epochs=1,
        work_dir=str(tmp_path),
    )
    with pytest.raises(ZeroDivisionError):
        loop.run()
    (trace,) = tmp_path.iterdir()
    assert "aten::linear" in names(trace)


def test_other_ranks_record_nothing(tmp_path):
    loop = TracedRun(ProfilerHook(), max_epochs=1, work_dir=str(tmp_path))
    loop.runner.session.rank = 1
    loop.run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"profile_iters": 0}, ValueError, "profile_iters must be"),
        ({"activities": ["cpu", "cudo"]}, ValueError, "did you mean 'cuda'"),
        ({"on_trace_ready": {"type": "tb"}}, ValueError, "did you mean|known"),
    ],
)
def test_wrong_arguments_are_refused(options, error, words):
    with pytest.raises(ConfigError, match=words) as caught:
        ProfilerHook(**options)
    assert isinstance(caught.value, error)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "limit", "words"),
    [
        ({}, {"max_iters": 2}, "by_epoch=False"),
        ({}, {"max_epochs": 1}, "no work_dir"),
    ],
)
def test_what_does_not_fit_the_run_is_refused_before_it_begins(options, limit, words):
    with pytest.raises(ConfigError, match=words):
        TracedRun(ProfilerHook(**options), **limit).run()
