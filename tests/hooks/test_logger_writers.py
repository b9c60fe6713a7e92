"""TensorBoard event files, wandb and MLflow."""

import sys

import pytest

from devrun.errors import ConfigError
from devrun.hooks.evaluation import EvalHook
from devrun.hooks.logger import MlflowLoggerHook, TensorboardLoggerHook, WandbLoggerHook
from devrun.hooks.timer import IterTimerHook
from devrun.registry import HOOKS
from tests.support.points import loader, make_runner


def events(path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    found = accumulator.EventAccumulator(str(path))
    found.Reload()
    return found


def train(hook, tmp_path, **kwargs):
    evaluation = EvalHook(
        loader(), metric="accuracy", by_epoch=kwargs.get("by_epoch", True)
    )
    runner = make_runner(IterTimerHook(), evaluation, hook, work_dir=tmp_path, **kwargs)
    runner.run([loader()], [("train", 1)])
    return runner


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_event_files_have_training_and_evaluation_at_completed_updates(tmp_path):
    train(TensorboardLoggerHook(interval=2), tmp_path)
    found = events(tmp_path / "tf_logs")
    tags = set(found.Tags()["scalars"])
    assert tags == {
        "train/loss",
        "train/samples_per_sec",
        "val/loss",
        "val/accuracy",
        "learning_rate",
        "momentum",
    }
    assert [e.step for e in found.Scalars("train/loss")] == [2, 4, 6, 8]
    assert [e.step for e in found.Scalars("val/accuracy")] == [4, 8]
    assert found.Scalars("learning_rate")[0].value == pytest.approx(0.1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_event_files_go_where_they_are_told(tmp_path):
    train(TensorboardLoggerHook(tmp_path / "elsewhere", interval=2), tmp_path / "work")
    assert events(tmp_path / "elsewhere").Scalars("train/loss")


def test_event_files_need_a_place():
    pytest.importorskip("tensorboard")
    runner = make_runner(TensorboardLoggerHook())
    with pytest.raises(ConfigError, match="log_dir"):
        runner.run([loader()], [("train", 1)])


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("WandbLoggerHook", "wandb"),
        ("MlflowLoggerHook", "mlflow"),
        ("TensorboardLoggerHook", "tensorboard"),
    ],
)
def test_a_missing_package_names_the_extra(monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        ConfigError, match=rf"pip install 'devrun\[{package}\]'"
    ) as caught:
        HOOKS.build({"type": name})
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_training_and_evaluation_of_one_step(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")

    class Watched(WandbLoggerHook):
        def after_run(self, runner):
            self.seen = dict(self.run.summary)
            super().after_run(runner)

    hook = Watched(interval=2, by_epoch=False, init_kwargs={"project": "p"})
    train(hook, tmp_path, by_epoch=False, length=4)
    assert hook.run is None
    assert {"train/loss", "val/loss", "val/accuracy", "learning_rate"} <= set(hook.seen)
    assert hook.seen["_step"] == 3  # the row of step 4 is open until the end


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_the_metrics_of_each_step(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    hook = MlflowLoggerHook("tests", params={"a": 1}, log_model=False, interval=2)
    train(hook, tmp_path)
    run = mlflow.last_active_run()
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train/loss")
    assert [entry.step for entry in history] == [2, 4, 6, 8]
    assert mlflow.active_run() is None
