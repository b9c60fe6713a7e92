"""Which hooks are taken, in which order they run, and which are refused."""

import copy
import logging

import pytest

from devrun.devices.cpu import CPUAdapter
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.hooks import Hook, Priority
from devrun.step import Capability
from tests.support.noisy import plain_loader, runner
from tests.support.observe import Trace


class NoGradients(CPUAdapter):
    """A device that keeps its gradients and its update to itself."""

    name = "closed"
    capabilities = frozenset(Capability) - {
        Capability.GRAD_ACCESS,
        Capability.HOOK_UPDATE,
    }


def order(run, stage="before_run"):
    calls = []

    def noting(name):
        return type(name, (Hook,), {stage: lambda self, runner: calls.append(name)})()

    return calls, noting


def test_hooks_run_by_priority_then_by_registration():
    run = runner(limit=1)
    calls, noting = order(run)
    run.register_hook(noting("normal"))
    run.register_hook(noting("lowest"), "LOWEST")
    run.register_hook(noting("second_normal"), Priority.NORMAL)
    run.register_hook(noting("first"), 0)
    run.register_hook(noting("high"), "high")
    run.run([plain_loader(1)])
    assert calls == ["first", "high", "normal", "second_normal", "lowest"]


def test_the_same_hook_twice_is_refused():
    run, hook = runner(), Trace()
    run.register_hook(hook)
    with pytest.raises(ConfigError, match="registered already"):
        run.register_hook(hook)
    with pytest.raises(TypeError, match="instance of devrun.hooks.Hook"):
        run.register_hook(Trace)


def test_a_stage_that_does_not_exist_is_refused_at_registration():
    misspelt = type("Misspelt", (Hook,), {"after_train_itre": lambda *_: None})
    with pytest.raises(ConfigError, match="after_train_iter"):
        runner().register_hook(misspelt())


def test_gradients_are_asked_for_at_registration():
    class Gradients(Hook):
        def after_backward(self, runner):
            pass

    run = runner(device=NoGradients())
    with pytest.raises(UnsupportedFeatureError, match="Gradients .*'closed'"):
        run.register_hook(Gradients())


def test_training_hooks_have_mmcvs_priorities_and_leave_the_config_alone(tmp_path):
    config = {
        "lr_config": {"policy": "step", "step": [2]},
        "momentum_config": {"policy": "CosineAnnealing", "min_momentum": 0.5},
        "optimizer_config": {"grad_clip": {"max_norm": 1.0}},
        "checkpoint_config": {"interval": 1},
        "log_config": {"interval": 5, "hooks": [{"type": "TextLoggerHook"}]},
        "custom_hooks_config": [{"type": "EmptyCacheHook", "priority": "HIGHEST"}],
    }
    before = copy.deepcopy(config)
    for by_epoch in (True, False):  # the same config for two runners
        run = runner(by_epoch, work_dir=tmp_path)
        run.register_training_hooks(**config)
        assert config == before
        assert [(type(h).__name__, h.priority) for h in run.hooks] == [
            ("EmptyCacheHook", 0),
            ("StepLrUpdaterHook", 10),
            ("CosineAnnealingMomentumUpdaterHook", 30),
            ("OptimizerHook", 40),
            ("IterTimerHook", 70),
            ("TextLoggerHook", 90),
            ("CheckpointHook", 100),
        ]
        assert run.hooks[-1].by_epoch is by_epoch
        assert run.hooks[-2].by_epoch is by_epoch


def test_a_run_begins_with_one_row_a_hook(caplog):
    run = runner(limit=1, logger=logging.getLogger("mine"))
    run.register_hook(Trace(), "HIGH")
    with caplog.at_level("INFO", logger="mine"):
        run.run([plain_loader(1)])
    (row,) = [line for line in caplog.text.splitlines() if "hook: " in line]
    assert "hook: HIGH         Trace before_run " in row
    assert run.get_hook_info() == "\n".join(run.table.rows())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"grad_clip": {"max_nrm": 1}}, "max_nrm"),
        ({"grad_clip": {"max_norm": 1, "clip_value": 1}}, "either"),
        ({"grad_clip": 3}, "dict"),
        ({"cumulative_iters": 0}, "cumulative_iters"),
        ({"precision": "fp4"}, "bf16"),
        ({"nonfinite": "explode"}, "skip"),
        ({"loss_scale": -1}, "loss_scale"),
    ],
)
def test_wrong_update_settings_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        runner().register_optimizer_hook(arguments)
