"""TextLoggerHook: MMCV's lines and the JSON file, from real runs."""

import json
import re

import pytest
import torch
from torch import nn

from devrun.hooks.base import Hook
from devrun.hooks.logger import LoggerHook, TextLoggerHook
from devrun.hooks.timer import IterTimerHook
from tests.support.observe import records
from tests.support.points import loader, make_runner, model
from tests.support.strict import zip_strict

TIMES = r"eta: 0:00:\d\d, time: \d+\.\d{3}, data_time: \d+\.\d{3}, (memory: \d+, )?"
RATE = r"samples_per_sec: \d+\.\d"


class Losses(nn.Module):
    """Logs 1, 2, 3, ... as its training loss and 10, 20, ... as its val loss."""

    def __init__(self, num_samples=1):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.steps = {"train": 0, "val": 0}
        self.num_samples = num_samples
        self.extra = {}

    def train_step(self, data, optimizer, **kwargs):
        return self._step("train", 1.0)

    def val_step(self, data, optimizer=None, **kwargs):
        return self._step("val", 10.0)

    def _step(self, mode, unit):
        self.steps[mode] += 1
        value = unit * self.steps[mode]
        log_vars = {"loss": torch.tensor(value), **self.extra}
        return {
            "loss": self.weight * 0 + value,
            "log_vars": log_vars,
            "num_samples": self.num_samples,
        }


def run(*hooks, workflow=(("train", 1),), count=12, **kwargs):
    runner = make_runner(*hooks, **kwargs)
    loaders = [loader(count) for _ in workflow]
    runner.run(loaders, list(workflow))
    return runner


def test_train_lines_of_an_epoch_runner_are_mmcvs(tmp_path):
    runner = run(
        IterTimerHook(), TextLoggerHook(interval=2), model=Losses(3), work_dir=tmp_path
    )
    lines = runner.lines.matching(r"^Epoch \[")
    expected = [(1, 2, 1.5), (1, 4, 3.5), (2, 2, 5.5), (2, 4, 7.5)]
    assert len(lines) == 4
    for line, (epoch, done, loss) in zip_strict(lines, expected):
        head = rf"Epoch \[{epoch}\]\[{done}/4\]\tlr: 1\.000e-01, "
        pattern = rf"{head}{TIMES}loss: {loss:.4f}, {RATE}"
        assert re.fullmatch(pattern, line), line


def test_train_lines_of_an_iter_runner_are_mmcvs(tmp_path):
    runner = run(
        IterTimerHook(),
        TextLoggerHook(interval=4, by_epoch=False),
        model=Losses(),
        by_epoch=False,
        length=8,
        work_dir=tmp_path,
    )
    lines = runner.lines.matching(r"^Iter \[")
    assert len(lines) == 2
    for line, (done, loss) in zip_strict(lines, [(4, 2.5), (8, 6.5)]):
        pattern = rf"Iter \[{done}/8\]\tlr: 1\.000e-01, {TIMES}loss: {loss:.4f}, {RATE}"
        assert re.fullmatch(pattern, line), line


def test_a_val_epoch_is_one_line_and_one_record(tmp_path):
    runner = run(
        IterTimerHook(),
        TextLoggerHook(interval=2),
        model=Losses(),
        length=1,
        work_dir=tmp_path,
        workflow=[("train", 1), ("val", 1)],
    )
    assert runner.lines.matching(r"^Epoch\(val\)") == [
        "Epoch(val) [1][4]\tloss: 25.0000"
    ]
    record = records(tmp_path)[-1]
    assert {k: record[k] for k in ("mode", "epoch", "iter", "step", "loss")} == {
        "mode": "val",
        "epoch": 1,
        "iter": 4,
        "step": 4,
        "loss": 25.0,
    }


def test_val_losses_of_an_iter_runner_are_logged_apart_from_training(tmp_path):
    runner = run(
        IterTimerHook(),
        TextLoggerHook(interval=3, by_epoch=False),
        model=Losses(),
        by_epoch=False,
        length=6,
        work_dir=tmp_path,
        workflow=[("train", 3), ("val", 2)],
    )
    said = [line.split("\t")[0] for line in runner.lines.matching("^Iter")]
    assert said == ["Iter [3/6]", "Iter(val) [2]", "Iter [6/6]", "Iter(val) [2]"]
    found = [(r["mode"], r["step"], r["loss"]) for r in records(tmp_path)[1:]]
    assert found == [
        ("train", 3, 2.0),
        ("val", 3, 15.0),
        ("train", 6, 5.0),
        ("val", 6, 35.0),
    ]


def test_the_rest_of_an_epoch_is_logged_unless_ignored(tmp_path):
    def logged(ignore_last):
        hook = TextLoggerHook(interval=3, ignore_last=ignore_last)
        return len(run(hook, model=Losses(), length=1).lines.matching("^Epoch"))

    assert logged(True) == 1
    assert logged(False) == 2


def test_json_starts_with_meta_and_has_a_strict_record_a_line(tmp_path):
    net = Losses()
    net.extra = {"a\nb\x1b": float("nan"), "tiny": 1.23456e-7, "epoch": 5.0}
    run(
        TextLoggerHook(interval=2),
        model=net,
        length=1,
        work_dir=tmp_path,
        meta={"seed": 3, "exp_name": "x"},
    )
    (path,) = tmp_path.glob("*.log.json")
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    meta, first, _ = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert meta["seed"] == 3
    assert first["a\nb\x1b"] == "NaN"
    assert first["tiny"] == 1.2346e-7
    assert (first["epoch"], first["epoch_"]) == (1, 5.0)
    assert first["lr"] == 0.1


def test_throughput_is_samples_by_time(tmp_path):
    run(IterTimerHook(), TextLoggerHook(interval=2), model=Losses(7), work_dir=tmp_path)
    for record in records(tmp_path)[1:]:
        assert record["samples_per_sec"] * record["time"] == pytest.approx(7, rel=0.02)


def test_the_experiment_name_is_said_at_the_end_of_an_epoch():
    runner = run(TextLoggerHook(interval=2), model=Losses(), meta={"exp_name": "cats"})
    assert runner.lines.matching("Exp name") == ["Exp name: cats"] * 2


class Evaluator(Hook):
    """Puts results into the buffer as MMCV users' own evaluation hooks do."""

    priority = "LOW"

    def after_train_epoch(self, runner):
        runner.log_buffer.output["mIoU"] = torch.tensor(
            0.5
        )  # 0-d: MMCV's writers broke
        runner.log_buffer.output["note"] = "fine"
        runner.log_buffer.ready = True


def test_results_of_other_hooks_are_val_records(tmp_path):
    runner = run(
        Evaluator(),
        TextLoggerHook(interval=2),
        model=Losses(),
        length=1,
        work_dir=tmp_path,
    )
    (line,) = runner.lines.matching(r"^Epoch\(val\)")
    assert line.endswith("mIoU: 0.5000, note: fine")
    assert records(tmp_path)[-1]["mIoU"] == 0.5


class Tags(LoggerHook):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.logged = []

    def log(self, runner):
        tags = self.get_loggable_tags(runner)
        self.logged.append((self.get_mode(runner), self.get_iter(runner), tags))


def test_tags_of_a_users_logger_are_mmcvs():
    hook = Tags(interval=4)
    run(Evaluator(), hook, model=Losses(), length=1)
    train, val = hook.logged
    assert train == (
        "train",
        4,
        {"train/loss": 2.5, "learning_rate": 0.1, "momentum": 0},
    )
    assert val == ("val", 4, {"val/mIoU": 0.5, "learning_rate": 0.1, "momentum": 0})


def test_a_run_without_an_optimizer_or_work_dir_logs_no_rate():
    hook = Tags(interval=4)
    runner = make_runner(hook, model=model(), optimizer=None)
    runner.mode = "val"
    runner.log_buffer.update({"loss": 1.0})
    hook.after_val_epoch(runner)
    assert hook.logged == [("val", 0, {"val/loss": 1.0})]
