"""EvalHook: when, how, what is logged, and which checkpoints are kept."""

import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.errors import ConfigError, DataError
from devrun.hooks.evaluation import DistEvalHook, EvalHook, infer_rule
from devrun.hooks.logger import TextLoggerHook
from devrun.hooks.timer import IterTimerHook
from tests.support.near import assert_near
from tests.support.observe import records
from tests.support.points import loader, make_runner, model, samples


class Scored(TensorDataset):
    """Its `evaluate` gives the next of `scores`, in MMCV's words."""

    def __init__(self, scores=(0.5,)):
        super().__init__(*samples().tensors)
        self.scores = list(scores)
        self.calls = []

    def evaluate(self, results, logger=None, **kwargs):
        self.calls.append((results, kwargs))
        return {"acc": self.scores[len(self.calls) - 1]}


def run(*hooks, length=4, by_epoch=True, **kwargs):
    runner = make_runner(*hooks, by_epoch=by_epoch, length=length, **kwargs)
    runner.run([loader()], [("train", 1)])
    return runner


def evaluated(runner):
    """Epochs or iterations after which there was an evaluation line."""
    return [line.split("[")[1][0] for line in runner.lines.matching(r"\(val\)")]


@pytest.mark.parametrize(
    ("start", "interval", "expected"),
    [
        (None, 1, "1234"),
        (None, 2, "24"),
        (2, 2, "24"),
        (3, 1, "34"),
        (0, 3, "03"),
        (0, 1, "01234"),
        (9, 1, ""),
    ],
)
def test_epochs_of_evaluation(start, interval, expected):
    runner = run(EvalHook(loader(), start, interval), TextLoggerHook(interval=100))
    assert "".join(evaluated(runner)) == expected


@pytest.mark.parametrize(
    ("start", "interval", "expected"),
    [(None, 2, [2, 4, 6]), (0, 4, [0, 4]), (3, 2, [3, 5])],
)
def test_iterations_of_evaluation(tmp_path, start, interval, expected):
    hooks = (
        EvalHook(loader(), start, interval, by_epoch=False),
        TextLoggerHook(by_epoch=False, interval=3),
    )
    run(*hooks, by_epoch=False, length=6, work_dir=tmp_path)
    found = [r["step"] for r in records(tmp_path)[1:] if r["mode"] == "val"]
    assert found == expected


def test_a_resumed_run_at_or_after_start_is_evaluated_first():
    runner = make_runner(EvalHook(loader(), 2, 9), TextLoggerHook(), length=3)
    runner._epoch = 2  # as after a resume
    runner.run([loader()], [("train", 1)])
    assert evaluated(runner) == ["2"]


def test_means_count_every_sample_once_whatever_the_batches():
    found = []
    for batch_size in (1, 5, 12):
        hook = EvalHook(
            loader(batch_size=batch_size), metric=["accuracy", "perplexity"]
        )
        runner = make_runner(hook, length=1)
        hook.after_train_epoch(runner)
        found.append(dict(runner.log_buffer.output))
    x, y = samples().tensors
    scores = model()(x)
    loss = nn.functional.cross_entropy(scores, y).item()
    for result in found:
        assert_near(result["loss"], loss)
        assert_near(result["perplexity"], math.exp(loss))
        assert result["accuracy"] == pytest.approx(
            (scores.argmax(1) == y).float().mean().item()
        )
    assert [result["eval_iter_num"] for result in found] == [12, 3, 1]


def test_training_values_of_an_iter_runner_come_before_and_unmixed(tmp_path):
    hooks = (
        IterTimerHook(),
        EvalHook(loader(), interval=2, by_epoch=False, metric="accuracy"),
        TextLoggerHook(interval=2, by_epoch=False),
    )
    run(*hooks, by_epoch=False, length=4, work_dir=tmp_path)
    found = records(tmp_path)[1:]
    assert [(r["mode"], r["step"]) for r in found] == [
        ("train", 2),
        ("val", 2),
        ("train", 4),
        ("val", 4),
    ]
    assert all(("accuracy" in r) == (r["mode"] == "val") for r in found)
    assert all(("time" in r) == (r["mode"] == "train") for r in found)


def best_names(tmp_path):
    return sorted(path.name for path in (tmp_path / "checkpoints").glob("best_*"))


def scored(scores, tmp_path, **kwargs):
    kwargs.setdefault("save_best", "acc")
    hook = EvalHook(DataLoader(Scored(scores), batch_size=4), **kwargs)
    runner = run(hook, length=len(scores), work_dir=tmp_path)
    return hook, runner


def test_the_best_checkpoint_replaces_the_one_before(tmp_path):
    hook, runner = scored([0.3, 0.5, 0.4], tmp_path)
    assert best_names(tmp_path) == ["best_acc_epoch_2"]
    best = str(tmp_path / "checkpoints" / "best_acc_epoch_2")
    assert runner.meta["hook_msgs"] == {"best_score": 0.5, "best_ckpt": best}
    pointed = json.loads((tmp_path / "checkpoints" / "best.json").read_text())
    assert pointed["checkpoint"] == "best_acc_epoch_2"
    assert hook.state_dict()["best"] == (0.5, "best_acc_epoch_2")


def test_a_best_score_of_zero_is_a_score(tmp_path):
    scored([0.0], tmp_path)
    assert best_names(tmp_path) == ["best_acc_epoch_1"]
    _, runner = scored([0.0, -1.0], tmp_path / "second")
    assert runner.meta["hook_msgs"]["best_score"] == 0.0


def test_not_a_number_is_never_the_best(tmp_path):
    _, runner = scored([math.nan, 0.1, math.nan, math.inf], tmp_path)
    assert best_names(tmp_path) == ["best_acc_epoch_2"]
    assert len(runner.lines.matching("cannot be the best")) == 3


def test_auto_takes_the_first_result_and_its_rule(tmp_path):
    hook = EvalHook(loader(), save_best="auto", metric="accuracy")
    runner = run(hook, length=2, work_dir=tmp_path)
    assert (hook.key_indicator, hook.rule) == ("loss", "less")
    assert runner.meta["hook_msgs"]["best_ckpt"].endswith("best_loss_epoch_2")


def test_the_best_is_not_forgotten_by_a_resumed_run(tmp_path):
    _, runner = scored([0.7], tmp_path)
    best = runner.meta["hook_msgs"]["best_ckpt"]
    hook = EvalHook(DataLoader(Scored([0.6, 0.65]), batch_size=4), save_best="acc")
    second = make_runner(hook, length=3, work_dir=tmp_path)
    second.resume(best)
    second.run([loader()], [("train", 1)])
    assert best_names(tmp_path) == ["best_acc_epoch_1"]
    assert second.meta["hook_msgs"]["best_score"] == 0.7


def test_the_best_is_known_from_hook_messages_of_the_same_metric_only():
    hook = EvalHook(loader(), save_best="loss")
    hook.best.adopt({"best_score": 0.9, "best_ckpt": "/a/best_acc_epoch_3.pth"}, "loss")
    assert hook.best.entry is None
    hook.best.adopt(
        {"best_score": 0.9, "best_ckpt": "/a/best_loss_epoch_3.pth"}, "loss"
    )
    assert hook.best.entry == (0.9, "best_loss_epoch_3.pth")


def test_mmcvs_evaluate_gets_one_prediction_a_sample_in_order():
    data = Scored()
    hook = EvalHook(DataLoader(data, batch_size=5), metric="accuracy", topk=(1, 5))
    runner = run(hook, length=1)
    ((results, kwargs),) = data.calls
    assert kwargs == {"metric": "accuracy", "topk": (1, 5)}
    expected = runner.model(samples().tensors[0]).detach().numpy()
    assert_near(results, list(expected))


def test_a_test_function_gets_model_and_loader_and_its_list_is_evaluated():
    data = Scored()

    def test_fn(net, batches):
        assert not net.training
        return [net(x).argmax(1).tolist() for x, _ in batches]

    run(EvalHook(DataLoader(data, batch_size=6), test_fn=test_fn), length=1)
    assert [len(part) for part in data.calls[0][0]] == [6, 6]


def test_a_test_function_may_give_the_results_itself(tmp_path):
    hook = EvalHook(loader(), test_fn=lambda net, batches: {"mAP": torch.tensor(0.25)})
    run(hook, TextLoggerHook(interval=100), length=1, work_dir=tmp_path)
    assert records(tmp_path)[1]["mAP"] == 0.25
    with pytest.raises(ConfigError, match="return a dict"):
        run(EvalHook(loader(), test_fn=lambda net, batches: [1]), length=1)


def test_dist_eval_hook_passes_mmcvs_arguments_on():
    seen = {}

    def test_fn(net, batches, tmpdir, gpu_collect):
        seen.update(tmpdir=tmpdir, gpu_collect=gpu_collect)
        return {"acc": 1.0}

    run(
        DistEvalHook(loader(), test_fn=test_fn, tmpdir="/x", gpu_collect=True), length=1
    )
    assert seen == {"tmpdir": "/x", "gpu_collect": True}


@pytest.mark.parametrize(
    ("metric", "rule"),
    [
        ("accuracy", "greater"),
        ("TOP5", "greater"),
        ("bbox_mAP_50", "greater"),
        ("val_loss", "less"),
        ("perplexity", "less"),
    ],
)
def test_the_rule_is_told_from_the_name(metric, rule):
    assert infer_rule(metric) == rule


def test_keys_of_the_user_replace_the_built_in_ones():
    hook = EvalHook(loader(), save_best="loss", greater_keys="loss", less_keys=["x"])
    assert hook.rule == "greater"


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"interval": 0}, ValueError, "interval"),
        ({"start": -1}, ValueError, "start"),
        ({"save_best": "acc", "rule": "more"}, KeyError, "'greater' or 'less'"),
        ({"save_best": "speed"}, ValueError, "rule='greater'"),
        ({"metric": "acuracy"}, KeyError, "did you mean 'accuracy'"),
        ({"intervall": 2}, TypeError, "did you mean 'interval'"),
    ],
)
def test_wrong_arguments_are_refused_on_one_line(kwargs, error, message):
    with pytest.raises(error, match=message) as caught:
        EvalHook(loader(), **kwargs)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_evaluated_is_refused():
    with pytest.raises(TypeError, match="DataLoader"):
        EvalHook([1, 2])
    for empty in (
        DataLoader(TensorDataset(torch.zeros(0, 2))),
        loader(2, batch_size=3, drop_last=True),
    ):
        with pytest.raises(DataError, match="yields no batch"):
            EvalHook(empty)


def test_a_failed_save_leaves_the_best_as_it_was(tmp_path, monkeypatch):
    hook, runner = scored([0.5], tmp_path)

    def full(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(runner, "save_checkpoint", full)
    with pytest.raises(OSError, match="disk full"):
        hook.best.offer(runner, "acc", "greater", 0.9, "epoch_2")
    assert hook.best.entry == (0.5, "best_acc_epoch_1")
    assert runner.meta["hook_msgs"]["best_score"] == 0.5
