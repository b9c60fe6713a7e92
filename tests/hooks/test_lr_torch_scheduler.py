"""Torch schedulers as policies: when they step, and how they survive a kill."""

import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from devrun.errors import ConfigError
from devrun.hooks.evaluation import EvalHook
from devrun.hooks.schedules.torch_scheduler import TorchSchedulerHook, build_lr_hook
from devrun.registry import LR_SCHEDULERS
from tests.support.runs import TracedRun, batches

POLICIES = {
    "ExponentialLR": {"gamma": 0.8},
    "MultiStepLR": {"milestones": [2, 5], "gamma": 0.5},
    "CosineAnnealingLR": {"T_max": 12},
    "CosineAnnealingWarmRestarts": {"T_0": 5, "T_mult": 2},
    "OneCycleLR": {"max_lr": 0.5, "total_steps": 12},
    "CyclicLR": {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 3},
    "LambdaLR": {"lr_lambda": lambda step: 1 / (1 + step)},
    "SequentialLR": {
        "schedulers": [
            {"policy": "LinearLR", "start_factor": 0.1, "total_iters": 4},
            {"policy": "CosineAnnealingLR", "T_max": 8},
        ],
        "milestones": [4],
    },
    "ChainedScheduler": {
        "schedulers": [
            {"policy": "ConstantLR", "factor": 0.1, "total_iters": 3},
            {"policy": "ExponentialLR", "gamma": 0.9},
        ],
    },
}


def hook_for(name, **options):
    hook = build_lr_hook(
        {"policy": name, "by_epoch": False, **POLICIES[name], **options}
    )
    assert isinstance(hook, TorchSchedulerHook)
    return hook


def test_by_epoch_it_steps_once_for_each_completed_epoch():
    hook = build_lr_hook({"policy": "ExponentialLR", "gamma": 0.5})
    loop = TracedRun(hook, max_epochs=3, length=2).run()
    assert loop.first_lrs == [0.1, 0.1, 0.05, 0.05, 0.025, 0.025]


def test_a_sequence_warms_up_and_then_anneals():
    loop = TracedRun(hook_for("SequentialLR"), max_iters=12).run()
    expected = [0.1 * (0.1 + 0.9 * i / 4) for i in range(4)]
    expected += [0.05 * (1 + math.cos(math.pi * i / 8)) for i in range(8)]
    assert loop.first_lrs == pytest.approx(expected)


@pytest.mark.parametrize("stop", [1, 4, 7])
@pytest.mark.parametrize("name", POLICIES)
def test_a_resumed_run_has_the_rates_and_weights_of_one_never_stopped(
    tmp_path, name, stop
):
    whole = TracedRun(hook_for(name), max_epochs=3).run()
    first = TracedRun(hook_for(name), max_epochs=3).run(stop_at=stop)
    second = TracedRun(hook_for(name), max_epochs=3).load(first.save(tmp_path)).run()
    assert first.lrs + second.lrs == whole.lrs
    assert first.momenta + second.momenta == whole.momenta
    assert torch.equal(second.model.weight, whole.model.weight)


@pytest.mark.parametrize("name", ["ExponentialLR", "OneCycleLR"])
def test_it_goes_on_when_the_optimizer_is_not_resumed(tmp_path, name):
    whole = TracedRun(hook_for(name), max_epochs=3).run()
    saved = TracedRun(hook_for(name), max_epochs=3).run(stop_at=5).save(tmp_path)
    second = (
        TracedRun(hook_for(name), max_epochs=3)
        .load(saved, resume_optimizer=False)
        .run()
    )
    assert second.lrs == whole.lrs[5:]
    assert second.momenta == whole.momenta[5:]


def test_changed_arguments_apply_from_the_start(tmp_path):
    saved = (
        TracedRun(hook_for("ExponentialLR"), max_epochs=3).run(stop_at=5).save(tmp_path)
    )
    second = TracedRun(hook_for("ExponentialLR", gamma=0.5), max_epochs=3).load(saved)
    assert second.run().first_lrs == pytest.approx([0.1 * 0.5**i for i in range(5, 12)])


def test_a_registered_scheduler_is_a_policy(request):
    @LR_SCHEDULERS.register_module()
    class EverySecondLR(lr_scheduler.LRScheduler):
        def get_lr(self):
            return [base / (1 + self.last_epoch % 2) for base in self.base_lrs]

    request.addfinalizer(lambda: LR_SCHEDULERS.module_dict.pop("EverySecondLR"))
    hook = build_lr_hook({"policy": "EverySecondLR", "by_epoch": False})
    assert TracedRun(hook, max_iters=3).run().first_lrs == [0.1, 0.05, 0.1]


def test_a_scheduler_is_found_by_its_dotted_path():
    cfg = {"policy": "torch.optim.swa_utils.SWALR", "swa_lr": 0.05, "anneal_epochs": 2,
           "anneal_strategy": "linear", "by_epoch": False}  # fmt: skip
    loop = TracedRun(build_lr_hook(cfg), max_iters=4).run()
    assert loop.first_lrs == pytest.approx([0.1, 0.075, 0.05, 0.05])


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        ({"policy": "StepLR", "step_size": 2, "gama": 1}, "did you mean 'gamma'"),
        ({"policy": "StepLR", "step_size": 2, "last_epoch": 3}, "'last_epoch'"),
        ({"policy": "SequentialLR", "milestones": [1], "schedulers": ["StepLR"]},
         "must be a dict with a 'policy', got 'StepLR'"),
        ({"policy": "SequentialLR", "milestones": [1],
          "schedulers": [{"policy": "StpLR"}]}, "did you mean 'StepLR'"),
        ({"policy": "ReduceLROnPlateau"}, "'monitor'"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_when_the_hook_is_built(cfg, words):
    with pytest.raises(ConfigError, match=words) as caught:
        build_lr_hook(cfg)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        ({"policy": "OneCycleLR", "max_lr": 1}, "You must define either total_steps"),
        ({"policy": "CosineAnnealingWarmRestarts", "T_0": -1}, "Expected positive"),
        ({"policy": "ExponentialLR", "gamma": 0.1, "by_epoch": True}, "by_epoch=False"),
    ],
)
def test_what_torch_refuses_is_one_line(cfg, words):
    loop = TracedRun(build_lr_hook({"by_epoch": False, **cfg}), max_iters=2)
    with pytest.raises(ConfigError, match=words) as caught:
        loop.run()
    assert "\n" not in str(caught.value)


def evaluation(values, *, by_epoch=True):
    """One whose result `acc` is the next of `values`."""
    ahead = iter(values)
    return EvalHook(
        batches(1),
        by_epoch=by_epoch,
        test_fn=lambda model, loader: {"acc": next(ahead)},
    )


def plateau(**options):
    options = {"monitor": "acc", "mode": "max", "factor": 0.5, "patience": 1, **options}
    return build_lr_hook({"policy": "ReduceLROnPlateau", **options})


def test_plateau_lowers_the_rate_when_the_metric_stands_still():
    results = evaluation([0.5, 0.6, 0.6, 0.6, 0.7])
    loop = TracedRun(plateau(), results, max_epochs=5, length=1).run()
    assert loop.first_lrs == [0.1, 0.1, 0.1, 0.1, 0.05]


def test_plateau_waits_through_epochs_without_an_evaluation():
    ahead = iter([0.5, 0.4, 0.4])
    results = EvalHook(
        batches(1), interval=2, test_fn=lambda model, loader: {"acc": next(ahead)}
    )
    loop = TracedRun(plateau(patience=0), results, max_epochs=7, length=1).run()
    assert loop.first_lrs == [0.1] * 4 + [0.05] * 2 + [0.025]


def test_plateau_by_iteration():
    results = evaluation([0.5, 0.5, 0.5, 0.6, 0.5], by_epoch=False)
    loop = TracedRun(plateau(by_epoch=False, patience=0), results, max_iters=5).run()
    assert loop.first_lrs == [0.1, 0.1, 0.05, 0.025, 0.025]


def test_plateau_takes_the_mean_of_a_val_epoch():
    hook = plateau(monitor="loss", mode="min", patience=0)
    losses = iter([3.0, 3.0, 0.5, 1.5, 3.0, 3.0, 1.2, 0.8, 3.0, 3.0, 0.9, 1.1])

    def loss(output, target):
        return output.sum() * 0 + next(losses)  # twice in train, twice in val

    loop = TracedRun(hook, max_epochs=3, length=2, loss=loss)
    loop.run(workflow=("train", "val"))
    assert loop.first_lrs == [0.1] * 4 + [0.05] * 2


@pytest.mark.parametrize("stop", [2, 3])
def test_plateau_remembers_its_count_after_a_kill(tmp_path, stop):
    values = [0.6, 0.5, 0.5, 0.5, 0.5, 0.5]

    def loop(past):
        return TracedRun(plateau(), evaluation(values[past:]), max_epochs=6, length=1)

    whole = loop(0).run()
    saved = loop(0).run(stop_at=stop).save(tmp_path)  # before the epoch's evaluation
    assert loop(stop - 1).load(saved).run().lrs == whole.lrs[stop:]


def test_plateau_says_when_evaluation_lacks_its_metric():
    loop = TracedRun(plateau(monitor="acc1"), evaluation([0.5]), max_epochs=2)
    with pytest.raises(ConfigError, match="'acc1'.* did you mean 'acc'"):
        loop.run()


def test_torch_does_not_warn_where_the_device_does_the_update():
    model = nn.Linear(3, 2)
    hook = hook_for("ExponentialLR")
    loop = TracedRun(hook, max_iters=2, model=model)
    hook.before_run(loop.runner)
    for loop.runner.state.iter in range(3):  # no optimizer.step in between
        hook.before_train_iter(loop.runner)
    assert loop.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.8**2)


def test_a_frequency_that_nothing_could_follow_is_refused():
    with pytest.raises(ConfigError, match="frequency must be an int of 1"):
        build_lr_hook({"policy": "StepLR", "step_size": 1, "frequency": 0})


@pytest.mark.parametrize("kind", [lr_scheduler.ExponentialLR, lr_scheduler.LinearLR])
def test_a_scheduler_made_already_resumes_too(tmp_path, kind):
    def loop():
        found = TracedRun(max_iters=6)
        made = kind(found.optimizer, 0.5)
        found.runner.register_hook(TorchSchedulerHook(made, by_epoch=False))
        return found

    whole = loop().run()
    saved = loop().run(stop_at=4).save(tmp_path)
    assert loop().load(saved).run().lrs == whole.lrs[4:]
