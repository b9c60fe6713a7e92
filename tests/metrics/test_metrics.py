"""Metrics by name, by function and by dotted path."""

import math
import sys

import pytest
import torch

from devrun.errors import ConfigError
from devrun.metrics import (
    METRICS,
    StatefulMetric,
    accuracy,
    build_metric,
    build_metrics,
    topk_accuracy,
)
from devrun.step import StepOutput

SCORES = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
TARGETS = torch.tensor([1, 1, 2])


def outputs(**kwargs):
    return StepOutput(log_vars={}, num_samples=3, **kwargs)


def test_accuracy_of_scores_and_of_class_numbers():
    assert accuracy(SCORES, TARGETS)[0] == pytest.approx(2 / 3)
    assert accuracy(SCORES.argmax(1), TARGETS)[0] == pytest.approx(2 / 3)


def test_accuracy_finds_the_class_dimension_and_skips_ignored_positions():
    scores = torch.randn(2, 5, 7)
    targets = scores.argmax(-1)
    targets[0, :3] = -100
    targets[1, 0] = (targets[1, 0] + 1) % 7
    assert accuracy(scores, targets)[0] == pytest.approx(6 / 7)
    assert accuracy(scores.movedim(-1, 1), targets)[0] == pytest.approx(6 / 7)


def test_topk_counts_a_class_among_the_best():
    assert topk_accuracy(SCORES, TARGETS, k=1)[0] == pytest.approx(2 / 3)
    assert topk_accuracy(SCORES, TARGETS, k=2)[0] == 1.0
    with pytest.raises(ConfigError, match="top4 of 3 classes"):
        topk_accuracy(SCORES, TARGETS, k=4)


@pytest.mark.parametrize("targets", [torch.zeros(3, 2), torch.zeros(4).long()])
def test_shapes_that_do_not_fit_are_refused(targets):
    with pytest.raises(ConfigError, match=r"predictions|class scores"):
        accuracy(SCORES, targets)


@pytest.mark.parametrize("name", ["top2", "accuracy_top-2"])
def test_topk_by_name(name):
    metric = build_metric(name)
    assert metric.name == name
    assert metric.batch(outputs(predictions=SCORES, targets=TARGETS)) == (1.0, 3)


def test_perplexity_is_exp_of_the_mean_loss():
    metric = build_metric("perplexity")
    assert metric.batch(outputs(loss=torch.tensor(2.0))) == 2.0
    assert metric.value(2.0) == pytest.approx(math.exp(2.0))
    assert metric.value(1e9) == math.inf
    assert math.isnan(metric.value(math.nan))
    with pytest.raises(ConfigError, match="needs a loss"):
        metric.batch(outputs(loss=None))


def test_a_function_of_the_user_is_a_metric_by_name_and_as_it_is():
    def error(predictions, targets):
        return (predictions != targets).float().mean()

    METRICS.register_module(name="test_error", module=error)
    try:
        metric = build_metric("test_error")
    finally:
        del METRICS.module_dict["test_error"]
    same = {"predictions": TARGETS, "targets": TARGETS}
    assert metric.batch(outputs(**same)) == 0.0
    assert build_metric(error).name == "error"


def test_two_metrics_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two metrics are named 'accuracy'"):
        build_metrics(["accuracy", "accuracy"])


def test_missing_predictions_are_named():
    metric = build_metric("accuracy")
    with pytest.raises(ConfigError, match="'targets'"):
        metric.batch(outputs(predictions=SCORES))


class Largest:
    def __init__(self):
        self.reset()

    def reset(self):
        self.seen = []

    def update(self, predictions, targets):
        self.seen.append(float(predictions.max()))

    def compute(self):
        return {"largest": torch.tensor(max(self.seen)), "batches": len(self.seen)}


def test_an_object_with_state_is_reset_updated_and_computed():
    METRICS.register_module(name="test_largest", module=Largest)
    try:
        metric = build_metric("test_largest")
    finally:
        del METRICS.module_dict["test_largest"]
    assert isinstance(metric, StatefulMetric)
    metric.update(outputs(predictions=SCORES, targets=TARGETS))
    metric.reset()
    metric.update(outputs(predictions=SCORES, targets=TARGETS))
    assert metric.compute() == {"largest": pytest.approx(0.7), "batches": 1.0}


def test_a_result_that_is_no_number_is_refused():
    holder = Largest()
    holder.compute = lambda: torch.ones(3)
    with pytest.raises(TypeError, match="shape"):
        StatefulMetric("per_class", holder).compute()


def test_torchmetrics_by_dotted_path():
    pytest.importorskip("torchmetrics")
    metric = build_metric(
        {"type": "torchmetrics.classification.MulticlassAccuracy", "num_classes": 3}
    )
    assert metric.name == "MulticlassAccuracy"
    metric.update(outputs(predictions=SCORES, targets=TARGETS))
    assert metric.compute()["MulticlassAccuracy"] == pytest.approx((0 + 0.5 + 1) / 3)


def test_a_missing_torchmetrics_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(ConfigError, match="pip install torchmetrics"):
        build_metric("torchmetrics.F1Score")
