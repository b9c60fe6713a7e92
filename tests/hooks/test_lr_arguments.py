"""`lr_config`: which hook it names, and one line for each mistake in it."""

import pytest

from devrun.errors import ConfigError, UnknownNameError
from devrun.hooks.schedules.hook import LrUpdaterHook
from devrun.hooks.schedules.torch_scheduler import build_lr_hook
from devrun.registry import HOOKS
from tests.support.runs import TracedRun


def test_a_users_own_policy_is_found_by_its_name(request):
    @HOOKS.register_module()
    class HalfLrUpdaterHook(LrUpdaterHook):
        def get_lr(self, runner, base_lr):
            return base_lr / 2

    request.addfinalizer(lambda: HOOKS.module_dict.pop("HalfLrUpdaterHook"))
    loop = TracedRun(build_lr_hook({"policy": "half"}), max_epochs=1).run()
    assert loop.first_lrs[0] == 0.05


@pytest.mark.parametrize(
    ("cfg", "error", "words"),
    [
        ({"step": 2}, KeyError, "needs a 'policy'; known: .*CosineAnnealing"),
        ("step", TypeError, "must be a dict or a hook, got 'step'"),
        ({"policy": "CosinAnnealing"}, KeyError, "did you mean 'CosineAnnealing'"),
        ({"policy": "CosineAnealingLR"}, KeyError, "did you mean 'CosineAnnealingLR'"),
        ({"policy": ""}, KeyError, "no learning-rate policy ''"),
        ({"policy": "step"}, TypeError, "'step'"),
        ({"policy": "step", "step": 0}, ValueError, "step must be .* got 0"),
        ({"policy": "step", "step": [3, -1]}, ValueError, "milestone .* got -1"),
        ({"policy": "step", "step": 1, "gama": 1}, TypeError, "did you mean 'gamma'"),
        (
            {"policy": "step", "step": 1, "warmup_iter": 1},
            TypeError,
            "did you mean 'warmup_iters'",
        ),
        ({"policy": "fixed", "warmup": "linar"}, ValueError, "did you mean 'linear'"),
        (
            {"policy": "fixed", "warmup": "exp", "warmup_iters": 0},
            ValueError,
            "warmup_iters must be .* got 0",
        ),
        (
            {
                "policy": "fixed",
                "warmup": "exp",
                "warmup_iters": 3,
                "warmup_ratio": 1.5,
            },
            ValueError,
            "warmup_ratio must be .* got 1.5",
        ),
        ({"policy": "CosineAnnealing"}, ValueError, "min_lr and min_lr_ratio.*neither"),
        (
            {"policy": "FlatCosineAnnealing", "min_lr": 0, "start_percent": 1},
            ValueError,
            "start_percent must be a float",
        ),
        (
            {"policy": "CosineRestart", "periods": [3, 4], "min_lr": 0},
            ValueError,
            "restart_weights must be as many as the 2 periods",
        ),
        ({"policy": "cyclic", "by_epoch": True}, ValueError, "by_epoch must be False"),
        ({"policy": "cyclic", "target_ratio": "a"}, ValueError, "target_ratio must be"),
        (
            {"policy": "cyclic", "target_ratio": [1, 2, 3]},
            ValueError,
            "pair of numbers",
        ),
        (
            {"policy": "cyclic", "step_ratio_up": 1.0},
            ValueError,
            "step_ratio_up must be",
        ),
        (
            {"policy": "cyclic", "anneal_strategy": "exp"},
            ValueError,
            "'cos' or 'linear'",
        ),
        (
            {"policy": "OneCycle", "max_lr": 1, "pct_start": 1.5},
            ValueError,
            "pct_start must be",
        ),
    ],
)
def test_a_mistake_in_lr_config_is_one_line(cfg, error, words):
    with pytest.raises(ConfigError, match=words) as caught:
        build_lr_hook(cfg)
    assert isinstance(caught.value, error)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cfg", "error", "words"),
    [
        (
            {"policy": "CosineRestart", "periods": [3], "min_lr": 0, "by_epoch": False},
            ConfigError,
            "periods must be 8 iterations together",
        ),
        (
            {"policy": "cyclic", "cyclic_times": 9},
            ConfigError,
            "at most the 8 iterations .* got 9",
        ),
        (
            {"policy": "OneCycle", "max_lr": 1, "total_steps": 7},
            ConfigError,
            "at least the 8 iterations of the run, got 7",
        ),
        ({"policy": "OneCycle", "max_lr": [1, 2]}, ConfigError, "got 2"),
        ({"policy": "OneCycle", "max_lr": {"Adam": 1}}, UnknownNameError, "'SGD'"),
    ],
)
def test_what_does_not_fit_the_run_is_refused_before_it_begins(cfg, error, words):
    loop = TracedRun(build_lr_hook(cfg), max_epochs=2)
    with pytest.raises(error, match=words):
        loop.run()
    assert loop.lrs == []
