"""Models with `return_loss` and data sets with `evaluate`, without a `test_fn`."""

import numpy as np
import torch

from devrun.hooks import EvalHook
from tests.mmcv_compat.mmcv_style import Classifier, Samples, loader, runner_of
from tests.support.near import assert_near


class AllInKwargs(Classifier):
    """Knows `return_loss` only through `**kwargs`."""

    def forward(self, img, **kwargs):
        return super().forward(img, **kwargs)


class OnlyTrains(Classifier):
    val_step = None


def evaluated(hook, model=None):
    runner = runner_of(model=model, max_epochs=1)
    runner.register_training_hooks(None, {"grad_clip": None}, timer_config=False)
    runner.register_hook(hook)
    runner.run([loader()], [("train", 1)])
    return runner


def predictions_of(model_class):
    samples = Samples()
    runner = evaluated(EvalHook(loader(samples)), model_class())
    with torch.no_grad():
        expected = runner.model(samples.inputs, return_loss=False)
    return np.stack(samples.asked[0]), np.stack(expected)


def test_predictions_come_from_forward_with_return_loss_false():
    got, expected = predictions_of(Classifier)
    assert_near(got, expected)


def test_return_loss_may_hide_in_kwargs():
    got, expected = predictions_of(AllInKwargs)
    assert_near(got, expected)


def test_a_model_without_val_step_can_be_evaluated():
    got, expected = predictions_of(OnlyTrains)
    assert_near(got, expected)


def test_a_subclass_names_the_metrics_it_knows():
    class Mine(EvalHook):
        _default_greater_keys = ["quality"]
        _default_less_keys = ["acc_gap"]

    assert Mine(loader(), save_best="quality").rule == "greater"
    assert Mine(loader(), save_best="acc_gap").rule == "less"
