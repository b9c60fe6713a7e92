import copy
import logging
import re
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from devrun.errors import ConfigError, DeviceUnavailableError, DevrunError
from devrun.hooks import EvalHook, Hook, LoggerHook
from devrun.registry import HOOKS
from devrun.runners.training import build_training
from devrun.runners.trial import trial

CONFIG = {
    "model": {"type": "MLP", "in_features": 12, "hidden": [8], "num_classes": 3},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 8,
        "workers_per_gpu": 0,
        "train": {
            "type": "SyntheticClassification",
            "num_samples": 32,
            "shape": [12],
            "num_classes": 3,
        },
        "val": {
            "type": "SyntheticClassification",
            "num_samples": 16,
            "shape": [12],
            "num_classes": 3,
        },
    },
    "optimizer": {"type": "SGD", "lr": 0.1},
    "runner": {"type": "EpochBasedRunner", "max_epochs": 2},
    "device": "cpu",
    "seed": 1,
}


def config(**changes):
    return {**copy.deepcopy(CONFIG), **changes}


def hooks_of(training):
    return [type(hook).__name__ for hook in training.runner.hooks]


def test_a_config_becomes_a_run_and_stays_as_it_was(tmp_path):
    cfg = config(
        work_dir=str(tmp_path),
        lr_config={"policy": "step", "step": [1]},
        optimizer_config={"grad_clip": {"max_norm": 1.0}},
        checkpoint_config={"interval": 1},
        evaluation={"interval": 1, "metric": "accuracy", "save_best": "accuracy"},
        workflow=[("train", 1), ("val", 1)],
    )
    before = copy.deepcopy(cfg)
    training = build_training(cfg, progress=False)
    training.run()
    assert cfg == before
    assert (training.runner.epoch, training.runner.iter) == (2, 8)
    assert hooks_of(training) == [
        "StepLrUpdaterHook",
        "OptimizerHook",
        "IterTimerHook",
        "EvalHook",
        "TextLoggerHook",
        "CheckpointHook",
    ]
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert "step-00000008" in names
    assert any(name.startswith("best_accuracy_epoch_") for name in names)


class Sends(LoggerHook):
    def prepare_dry_run(self):
        return False

    def log(self, runner):
        raise AssertionError("sent in a dry run")


@HOOKS.register_module()
class Watches(Hook):
    """What a run does to its end, which a dry run leaves no files of."""

    seen: ClassVar[dict] = {}

    def after_run(self, runner):
        evaluation = next(h for h in runner.hooks if isinstance(h, EvalHook))
        self.seen.update(
            iterations=runner.iter,
            evaluated=evaluation.evaluated_at,
            best=(evaluation.best.entry or ())[1:],
            hooks={type(hook).__name__ for hook in runner.hooks},
            files={p.name for p in Path(runner.work_dir).rglob("*")},
        )


RUNNERS = {
    "epochs": {"type": "EpochBasedRunner", "max_epochs": 90},
    "iterations": {"type": "IterBasedRunner", "max_iters": 5000},
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize("kind", RUNNERS)
def test_a_dry_run_tries_everything_evaluates_once_and_writes_nothing(
    tmp_path, capsys, monkeypatch, kind, by_epoch
):
    monkeypatch.chdir(tmp_path)
    cfg = config(
        runner=RUNNERS[kind],
        work_dir="none",
        workflow=[("train", 2), ("val", 1)],
        checkpoint_config={"interval": 1, "out_dir": "elsewhere"},
        evaluation={
            "interval": 1, "by_epoch": by_epoch, "save_best": "loss", "out_dir": "best",
        },
        log_config={
            "interval": 50,
            "hooks": [
                {"type": "TensorboardLoggerHook", "log_dir": "events"},
                {"type": "TextLoggerHook"},
                {"type": f"{__name__}.Sends"},
            ],
        },
        custom_hooks=[
            {"type": "ProfilerHook", "profile_iters": 50, "by_epoch": kind == "epochs"},
            {"type": "Watches", "priority": "LOWEST"},
        ],
    )  # fmt: skip
    with trial(cfg, 2, evaluate=1, save=True, progress=False) as training:
        training.run()
    seen, said = Watches.seen, capsys.readouterr().err
    assert seen["iterations"] == 2
    assert len(re.findall(r"(?:Epoch|Iter)\(val\).*loss", said)) == 2  # and the phase
    assert len(seen["best"]) == 1
    assert seen["hooks"] >= {"CheckpointHook", "EvalHook", "TextLoggerHook"}
    assert "Sends" not in seen["hooks"]
    assert {"checkpoints", "tf_logs", "step-00000002", *seen["best"]} <= seen["files"]
    assert "Sends takes no part in a dry run" in said
    assert list(tmp_path.iterdir()) == []


BROKEN = {
    "a logger that is not there": (
        {"log_config": {"hooks": [{"type": "NoSuchHook"}]}},
        "NoSuchHook",
    ),
    "a logger without its package": (
        {"log_config": {"hooks": [{"type": "WandbLoggerHook"}]}},
        r"pip install 'devrun\[wandb\]'",
    ),
    "an argument of a logger": (
        {"log_config": {"hooks": [{"type": "TextLoggerHook", "intervl": 1}]}},
        "did you mean 'interval'",
    ),
    "a best result that is not there": (
        {"evaluation": {"save_best": "accuracy"}},
        "'accuracy' is not a result",
    ),
    "a place for checkpoints": (
        {"checkpoint_config": {"out_dir": f"{__file__}/checkpoints"}},
        "cannot write in .*a file is in the way",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_dry_run_finds_what_would_end_the_run(monkeypatch, what):
    monkeypatch.setitem(sys.modules, "wandb", None)
    changes, words = BROKEN[what]
    with pytest.raises(DevrunError, match=words) as caught:
        with trial(config(**changes), 2, evaluate=1, save=True) as training:
            training.run()
    assert "\n" not in str(caught.value)


def test_fp16_and_accumulation_in_mmcvs_words():
    cfg = config(fp16={"loss_scale": 512.0}, optimizer_config={"cumulative_iters": 2})
    training = build_training(cfg, progress=False)
    policy = training.runner.policy
    assert (policy.precision, policy.loss_scale, policy.accumulate) == (
        "fp16",
        512.0,
        2,
    )
    training.run()
    assert training.runner.iter == 4  # 4 batches an epoch make 2 updates


@pytest.mark.parametrize("section", ["model", "data", "optimizer", "runner"])
def test_a_missing_section_is_named(section):
    cfg = config()
    del cfg[section]
    with pytest.raises(ConfigError, match=f"no section '{section}'"):
        build_training(cfg, progress=False)


def test_the_device_is_claimed_before_anything_is_built():
    cfg = config(device="ipu")
    cfg["model"]["type"] = "NoSuchModel"
    with pytest.raises(DeviceUnavailableError, match="ipu"):
        build_training(cfg, progress=False)


class Begins(torch.nn.Linear):
    init_cfg = None

    def init_weights(self):
        torch.nn.init.constant_(self.weight, 0.5)


@pytest.mark.parametrize("initialise", [True, False])
def test_a_model_with_init_cfg_gives_itself_its_first_weights(initialise):
    model = {"type": Begins, "in_features": 12, "out_features": 3}
    runner = build_training(config(model=model), initialise=initialise).runner
    assert bool((runner.model.weight == 0.5).all()) is initialise


def test_val_phases_read_a_data_set_of_their_own():
    data = {**CONFIG["data"], "val_phase": {**CONFIG["data"]["val"], "num_samples": 24}}
    cfg = config(data=data, workflow=[("train", 1), ("val", 1)])
    training = build_training(cfg, progress=False)
    (hook,) = (h for h in training.runner.hooks if isinstance(h, EvalHook))
    assert [len(one.dataset) for one in training.loaders] == [32, 24]
    assert len(hook.dataset) == 16


def test_keys_that_do_nothing_are_named(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("devrun"), "propagate", True)
    with caplog.at_level("WARNING", logger="devrun"):
        cfg = config(gpu_ids=[0], paramwise_cfg={"bias_lr_mult": 2})
        build_training(cfg, progress=False)
    assert "not used by devrun: gpu_ids, paramwise_cfg" in caplog.text


@pytest.mark.parametrize("newest", ["auto", "checkpoints/step-00000008"])
def test_a_dry_run_of_a_finished_run_tries_its_weights_out(tmp_path, newest):
    cfg = config(work_dir=str(tmp_path), checkpoint_config={"interval": 1})
    build_training(cfg).run()
    path = newest if newest == "auto" else str(tmp_path / newest)
    resumes = {**cfg, "resume_from": path}
    with trial(resumes, 2, evaluate=1, save=True, weights=True) as dry:
        trained = build_training(cfg).runner
        trained.load_checkpoint(str(tmp_path / "checkpoints/step-00000008"))
        for name, weight in trained.model.state_dict().items():
            assert torch.equal(dry.runner.model.state_dict()[name], weight)
        dry.run()
    assert (dry.runner.epoch, dry.runner.iter) == (1, 2)


def test_a_run_that_cannot_be_built_leaves_the_process_as_it_was():
    broken = {"type": "MLP", "in_features": -1, "hidden": [8], "num_classes": 3}
    with pytest.raises(ConfigError):
        build_training(config(model=broken, deterministic=True))
    assert not torch.are_deterministic_algorithms_enabled()


def test_fp16_beside_a_hook_of_ones_own_is_refused():
    cfg = config(fp16={"loss_scale": 512.0})
    plain = {"type": "OptimizerHook", "grad_clip": {"max_norm": 1.0}}
    policy = build_training({**cfg, "optimizer_config": plain}).runner.policy
    assert (policy.precision, policy.loss_scale) == ("fp16", 512.0)
    with pytest.raises(ConfigError, match="'Mine', which does not read .* fp16"):
        build_training({**cfg, "optimizer_config": {"type": "Mine"}})


def test_the_backend_of_every_mmcv_config_does_not_choose_the_device():
    training = build_training(config(dist_params={"backend": "nccl"}), progress=False)
    assert training.runner.adapter.options.backend is None
    training.runner.close()
