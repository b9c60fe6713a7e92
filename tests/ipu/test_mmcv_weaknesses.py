"""Known weaknesses of MMCV's IPU support, by number: tests that they are not here."""

import copy
import json
import sys

import pytest
import torch
from torch import nn

from devrun.hooks import EvalHook, Hook, OptimizerHook
from devrun.runners.training import build_training
from tests.ipu.harness import ipu, loader, make, net
from tests.support.near import assert_near

CONFIG = {
    "model": {"type": "MLP", "in_features": 12, "hidden": [8], "num_classes": 3},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 4,
        "train": {
            "type": "SyntheticClassification",
            "num_samples": 32,
            "shape": [12],
            "num_classes": 3,
        },
        "val": {
            "type": "SyntheticClassification",
            "num_samples": 18,
            "shape": [12],
            "num_classes": 3,
        },
    },
    "optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9},
    "runner": {"type": "EpochBasedRunner", "max_epochs": 2},
    "evaluation": {"interval": 1, "metric": "accuracy", "save_best": "accuracy"},
    "checkpoint_config": {"interval": 1},
    "device": ipu(replicas=2),
    "seed": 1,
}


def config(tmp_path, **changes):
    return {**copy.deepcopy(CONFIG), "work_dir": str(tmp_path), **changes}


def finished(cfg):
    training = build_training(cfg, progress=False)
    training.run()
    training.runner.close()
    return training.runner


def records(work_dir):
    (log,) = work_dir.glob("*.log.json")
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_2_the_best_checkpoint_loads_and_scores_what_it_scored(tmp_path):
    runner = finished(config(tmp_path))
    hook = next(h for h in runner.hooks if isinstance(h, EvalHook))
    score, name = hook.best.entry
    other = build_training(
        config(
            tmp_path / "again", device="cpu", load_from=str(next(tmp_path.rglob(name)))
        ),
        progress=False,
    ).runner
    other.log_buffer.clear()
    evaluation = next(h for h in other.hooks if isinstance(h, EvalHook))
    evaluation.save_best = None
    evaluation._do_evaluate(other)
    assert_near(other.log_buffer.output["accuracy"], score)
    other.close()


class Accuracies(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def train_step(self, batch, optimizer):
        output = self.net(batch[0])
        loss = nn.functional.cross_entropy(output, batch[1])
        top = (output.argmax(1) == batch[1]).float().mean()
        return {"loss": loss, "log_vars": {"top": top}, "num_samples": len(output)}


def test_7_the_logged_values_are_of_the_whole_batch_and_all_are_there():
    class Logged(Hook):
        def __init__(self):
            self.seen = []

        def after_train_iter(self, runner):
            values = runner.outputs["log_vars"]
            self.seen.append([float(values["loss"]), float(values["top"])])

    found = []
    for device, size in (("cpu", 16), (ipu(replicas=2), 2)):
        more = {} if size == 16 else {"optimizer_config": {"cumulative_iters": 4}}
        runner, _ = make(device, model=Accuracies(), loss=False, **more)
        logged = Logged()
        runner.register_hook(logged)
        runner.run([loader(batch_size=size)], [("train", 1)])
        runner.close()
        found.append(torch.tensor(logged.seen))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


class Own(OptimizerHook):
    """A hook that wants to do the update itself."""


def test_10_other_devices_workflows_and_hooks_are_not_disturbed(tmp_path):
    assert "poptorch" in sys.modules
    runner = finished(config(tmp_path / "cpu", device="cpu"))
    assert runner.iter == 16
    runner = finished(config(tmp_path / "val", workflow=[("train", 1), ("val", 1)]))
    assert runner.iter == 8
    cfg = config(
        tmp_path / "iter",
        runner={"type": "IterBasedRunner", "max_iters": 3},
        checkpoint_config={"interval": 3},
    )
    finished(cfg)
    cfg = {**cfg, "runner": {**cfg["runner"], "max_iters": 5}, "resume_from": "auto"}
    assert finished(cfg).iter == 5
    runner, _ = make(ipu())
    with pytest.raises(NotImplementedError, match="Own"):
        runner.register_optimizer_hook(Own())


def test_the_sections_of_an_mmcv_recipe_train_as_they_are(tmp_path, capsys):
    data = copy.deepcopy(CONFIG["data"])
    data["train_dataloader"] = {"mode": "async"}
    runner = finished(
        config(
            tmp_path,
            data=data,
            runner={
                "type": "IterBasedRunner",
                "max_iters": 4,
                "ipu_model_cfg": {
                    "train_split_edges": [
                        {"layer_to_call": 1, "ipu_id": 0},
                        {"layer_to_call": 4, "ipu_id": 1},
                    ]
                },
                "options_cfg": {
                    "randomSeed": 42,
                    "partialsType": "half",
                    "train_cfg": {
                        "executionStrategy": "SameAsIpu",
                        "Training": {"gradientAccumulation": 4},
                        "availableMemoryProportion": [0.3, 0.3],
                    },
                    "eval_cfg": {"deviceIterations": 1},
                },
            },
            fp16={
                "loss_scale": 256.0,
                "velocity_accum_type": "half",
                "accum_type": "half",
            },
            evaluation={"interval": 2, "metric": "accuracy"},
            checkpoint_config={"interval": 4},
        )
    )
    assert runner.iter == 4
    scored = [r for r in records(tmp_path) if r.get("mode") == "val"]
    assert ["accuracy" in r for r in scored] == [True, True]
    twin = runner.policy
    assert dict(twin.options) == {"velocity_accum_type": "half", "accum_type": "half"}
    assert {p.dtype for p in runner.model.parameters()} == {torch.float16}
    told = capsys.readouterr().err
    assert "micro-batch 4 x accumulation 4 x replicas 2 = 32 samples" in told
