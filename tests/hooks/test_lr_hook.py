"""What all learning-rate hooks share: groups, stages, resume, subclasses."""

import pytest
import torch

from devrun.errors import ConfigError
from devrun.hooks.schedules.hook import LrUpdaterHook
from devrun.hooks.schedules.policies import StepLrUpdaterHook
from devrun.hooks.schedules.torch_scheduler import build_lr_hook
from tests.support.runs import TracedRun


def two_groups(model):
    groups = [{"params": [model.weight], "lr": 0.4}, {"params": [model.bias]}]
    return torch.optim.SGD(groups, lr=0.1)


def test_each_group_keeps_its_own_initial_rate():
    hook = build_lr_hook({"policy": "step", "step": 1, "gamma": 0.5})
    loop = TracedRun(hook, max_epochs=2, length=1, optimizer=two_groups).run()
    assert loop.lrs == [[0.4, 0.1], [0.2, 0.05]]


def test_one_cycle_takes_peaks_per_group_and_per_optimizer():
    per_group = {"policy": "OneCycle", "max_lr": [0.5, 0.25]}
    loop = TracedRun(build_lr_hook(per_group), max_iters=5, optimizer=two_groups).run()
    assert loop.lrs[0] == pytest.approx([0.5 / 25, 0.25 / 25])

    def both(model):
        return {name: two_groups(model) for name in ("a", "b")}

    named = {"policy": "OneCycle", "max_lr": {"a": [1.0, 2.0], "b": 4.0}}
    loop = TracedRun(build_lr_hook(named), max_iters=5, optimizer=both).run()
    assert loop.lrs[0] == pytest.approx([0.04, 0.08, 0.16, 0.16])


@pytest.mark.parametrize("stop", [1, 4, 6, 9])
@pytest.mark.parametrize(
    "cfg",
    [
        {
            "policy": "CosineAnnealing",
            "min_lr": 0.0,
            "warmup": "exp",
            "warmup_iters": 5,
        },
        {"policy": "poly", "by_epoch": False, "warmup": "linear", "warmup_iters": 5},
        {"policy": "OneCycle", "max_lr": 0.4},
    ],
    ids=lambda cfg: cfg["policy"],
)
def test_a_resumed_run_has_the_rates_of_one_never_stopped(tmp_path, cfg, stop):
    whole = TracedRun(build_lr_hook(cfg), max_epochs=3).run()
    first = TracedRun(build_lr_hook(cfg), max_epochs=3).run(stop_at=stop)
    second = (
        TracedRun(build_lr_hook(cfg), max_epochs=3).load(first.save(tmp_path)).run()
    )
    assert first.lrs + second.lrs == whole.lrs


def test_a_rate_kept_in_a_tensor_is_filled_in_place():
    rate = torch.tensor(0.1)
    hook = build_lr_hook({"policy": "exp", "gamma": 0.5, "by_epoch": False})
    loop = TracedRun(
        hook,
        max_iters=3,
        optimizer=lambda m: torch.optim.Adam(m.parameters(), lr=rate, foreach=False),
    ).run()
    assert loop.optimizer.param_groups[0]["lr"] is rate
    assert loop.first_lrs == pytest.approx([0.1, 0.05, 0.025])
    assert hook.base_lr == pytest.approx([0.1])


def test_groups_are_written_only_when_the_value_changes():
    class Noted(dict):
        writes = 0

        def __setitem__(self, key, value):
            type(self).writes += 1
            super().__setitem__(key, value)

    hook = build_lr_hook({"policy": "step", "step": 4, "by_epoch": False})
    loop = TracedRun(hook, max_iters=12)
    loop.optimizer.param_groups[0] = Noted(loop.optimizer.param_groups[0])
    loop.optimizer.param_groups[0].setdefault("initial_lr", 0.1)
    loop.run()
    assert Noted.writes == 2


def test_a_subclass_that_overrides_a_stage_is_called_in_it():
    class Own(LrUpdaterHook):
        def before_train_iter(self, runner):
            self._set_lr(runner, [0.5 / (1 + runner.iter)])

    loop = TracedRun(Own(), max_iters=3).run()
    assert loop.first_lrs == pytest.approx([0.5, 0.25, 0.5 / 3])


def test_a_subclass_may_change_the_warmup():
    class Quadratic(StepLrUpdaterHook):
        def get_warmup_lr(self, cur_iters):
            part = (cur_iters + 1) / self.warmup_iters
            return [lr * part**2 for lr in self.regular_lr]

    hook = Quadratic(step=9, warmup="linear", warmup_iters=2)
    loop = TracedRun(hook, max_epochs=1).run()
    assert loop.first_lrs == pytest.approx([0.025, 0.1, 0.1, 0.1])


def test_a_schedule_by_epoch_is_refused_where_no_epoch_is_counted():
    loop = TracedRun(StepLrUpdaterHook(step=2), max_iters=4)
    with pytest.raises(ConfigError, match="give by_epoch=False"):
        loop.run()


def test_a_run_without_optimizer_is_refused():
    loop = TracedRun(
        StepLrUpdaterHook(step=2), max_epochs=1, optimizer=lambda model: None
    )
    with pytest.raises(ConfigError, match="this runner has none"):
        loop.run()


def test_a_subclass_may_give_the_formula_alone():
    class Halved(LrUpdaterHook):
        def value(self, base, progress, total):
            return base / 2 if progress >= total / 2 else base

    loop = TracedRun(Halved(by_epoch=False), max_iters=4).run()
    assert loop.first_lrs == [0.1, 0.1, 0.05, 0.05]


def test_arguments_may_stand_in_mmcv_s_order():
    class Mine(LrUpdaterHook):
        def __init__(self, part, by_epoch, **kwargs):
            self.part = part
            super().__init__(by_epoch, "constant", 2, 0.5, **kwargs)

        def get_lr(self, runner, base_lr):
            return base_lr * self.part

    loop = TracedRun(Mine(0.5, False), max_iters=4).run()
    assert loop.first_lrs == pytest.approx([0.025, 0.025, 0.05, 0.05])
    assert StepLrUpdaterHook(2, 0.5, 0.01).min_lr == 0.01
