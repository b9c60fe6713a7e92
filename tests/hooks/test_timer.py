"""IterTimerHook: what is timed, and what is left out; by a clock of the test's own."""

import pytest
from torch.utils.data import DataLoader

from devrun.devices.cpu import CPUAdapter
from devrun.devices.eager import EagerAdapter
from devrun.hooks.base import Hook
from devrun.hooks.evaluation import EvalHook
from devrun.hooks.logger import TextLoggerHook
from devrun.hooks.timer import IterTimerHook, exclude_time
from tests.support.observe import records
from tests.support.points import loader, make_runner, samples


class Clock:
    """Stands still unless something takes time."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in ("hooks.timer", "data.prepared", "data.timing", "runners.loops"):
        monkeypatch.setattr(f"devrun.{module}.perf_counter", clock)
    monkeypatch.setattr("devrun.hooks.evaluation.hook.perf_counter", clock)
    return clock


class Taking(Hook):
    """Takes 7 s after the second iteration, and says so if `honest`."""

    def __init__(self, clock, priority, honest=False):
        self.clock, self.priority, self.honest = clock, priority, honest

    def after_train_iter(self, runner):
        if runner.iter == 1:
            self.clock.now += 7
            if self.honest:
                exclude_time(runner, 7, "evaluation")


class Slow(list):
    """A data set of which each sample takes a second to load."""

    def __init__(self, clock, dataset):
        super().__init__(dataset)
        self.clock = clock

    def __getitem__(self, index):
        self.clock.now += 1
        return super().__getitem__(index)


def times(clock, *hooks, by_epoch=True):
    class Last(Hook):
        priority = "LOWEST"

        def after_train_iter(self, runner):
            kept = runner.log_buffer.val_history
            for name in self.history:
                self.history[name].append(kept[name][-1] if name in kept else None)

    last = Last()
    last.history = {"time": [], "data_time": []}
    length = 1 if by_epoch else 4
    runner = make_runner(
        IterTimerHook(), *hooks, last, by_epoch=by_epoch, length=length
    )
    data = loader()
    data = type(data)(Slow(clock, data.dataset), batch_size=3)
    runner.run([data], [("train", 1)])
    return last.history


def test_waiting_for_data_is_a_part_of_the_time(clock):
    assert times(clock) == {"time": [3] * 4, "data_time": [3] * 4}


@pytest.mark.parametrize("priority", ["NORMAL", "LOW"])
def test_what_is_excluded_pollutes_no_value(clock, priority):
    found = times(clock, Taking(clock, priority, honest=True))
    assert found == {"time": [3] * 4, "data_time": [3] * 4}


def test_an_evaluation_between_iterations_is_not_timed(clock):
    data = loader()
    slow = type(data)(Slow(clock, data.dataset), batch_size=4)
    hook = EvalHook(slow, interval=2, by_epoch=False)
    found = times(clock, hook, by_epoch=False)
    assert [t for t in found["time"] if t is not None] == [3, 3]  # others are cleared
    assert found["time"][2] == 3  # the iteration after the evaluation


def test_the_parts_of_a_run_are_added_up(clock):
    timer, data = IterTimerHook(), loader()
    slow = type(data)(Slow(clock, data.dataset), batch_size=4)
    hooks = [timer, EvalHook(slow, interval=1), Taking(clock, "NORMAL")]
    runner = make_runner(*hooks, by_epoch=True, length=1)
    runner.run([type(data)(slow.dataset, batch_size=3)], [("train", 1)])
    spent = {"data": 12, "copy": 0, "compute": 0, "hooks": 7}
    assert timer.spent == {**spent, "evaluation": 12, "saving": 0}


class Parts(CPUAdapter):
    """Each part of an update takes a second of the host, but `slow` takes four.

    Where that is `device`, steps return at once and are waited for by `synchronize`.
    """

    def __init__(self, clock, slow):
        super().__init__()
        self.clock, self.slow = clock, slow

    def take(self, part):
        self.clock.now += 4 if part == self.slow else 1

    def transfers(self, move):
        return EagerAdapter.transfers(self, move)

    def to_device(self, batch):
        self.take("copy")
        return batch

    def train_step(self, *args):
        self.take("compute")
        return super().train_step(*args)

    def synchronize(self):
        self.clock.now += 8 * (self.slow == "device")


class Host(Hook):
    def after_train_iter(self, runner):
        runner.adapter.take("host")


@pytest.mark.parametrize("slow", ["data", "copy", "host", "device"])
def test_a_record_has_the_parts_of_an_update(clock, slow, tmp_path):
    class Data(list):
        def __getitem__(self, index):
            runner.adapter.take("data")
            return super().__getitem__(index)

    runner = make_runner(
        Host(),
        IterTimerHook(),
        TextLoggerHook(interval=2),
        device=Parts(clock, slow),
        length=1,
        work_dir=tmp_path,
    )
    runner.run([DataLoader(Data(samples(8)), batch_size=1)], [("train", 1)])
    # at a log point the device is waited for: 2 updates of 1 + 8 / 2 seconds
    compute = 5 if slow == "device" else 1
    for record in records(tmp_path)[2:]:
        assert record["wait_time"] == (4 if slow == "data" else 1)
        assert record["copy_time"] == (4 if slow == "copy" else 1)
        assert record["compute_time"] == compute
