"""docs/from-mmcv.md: each new name exists, and what it claims is so."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.config import Config, check_config, parse_value
from devrun.config.schema import UNUSED
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.hooks import HOOKS, CheckpointHook, EMAHook, Hook, get_priority
from devrun.registry import MODELS
from devrun.runners import EpochBasedRunner, IterBasedRunner
from tests.docs.blocks import codes, items, text_of

DOCUMENT = "docs/from-mmcv.md"
ROWS = [codes(item) for item in items(DOCUMENT, "## Imports")]
NAMES = [f"{home}.{name}" for _, home, *names in ROWS for name in names]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_import_list_exists(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


def test_the_loggers_that_are_said_to_be_missing_are():
    sentence = re.search(
        r"the loggers ([\w, ]+) and (\w+)\.", text_of(DOCUMENT).replace("\n", " ")
    )
    for name in [*sentence[1].split(", "), sentence[2]]:
        assert f"{name}LoggerHook" not in HOOKS


def test_the_keys_that_are_not_used_are_those_the_run_names():
    (line,) = [i for i in items(DOCUMENT, "### Command line") if "in its log: " in i]
    assert sorted(codes(line.split("in its log: ")[1])) == sorted(UNUSED)


def make_runner(kind=EpochBasedRunner, model=None, **kwargs):
    model = nn.Linear(3, 2) if model is None else model
    if kind is EpochBasedRunner:
        kwargs.setdefault("max_epochs", 1)
    else:
        kwargs.setdefault("max_iters", 2)
    kwargs.setdefault("loss", nn.CrossEntropyLoss())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return kind(model, optimizer=optimizer, device="cpu", **kwargs)


def loader(batch_size=4):
    data = TensorDataset(torch.randn(16, 3), torch.arange(16) % 2)
    return DataLoader(data, batch_size=batch_size)


def test_one_iteration_is_one_update():
    runner = make_runner(optimizer_config={"cumulative_iters": 2})
    runner.run([loader()], [("train", 1)])
    assert (runner.iter, runner.max_iters, len(runner.data_loader)) == (2, 2, 2)


def test_without_optimizer_config_the_weights_are_updated():
    runner = make_runner()
    before = runner.model.weight.detach().clone()
    runner.run([loader()], [("train", 1)])
    assert not torch.equal(before, runner.model.weight)


def test_the_update_is_done_before_after_train_iter_and_the_loss_is_detached():
    class Look(Hook):
        priority = "HIGHEST"

        def __init__(self):
            self.seen = []

        def before_train_iter(self, runner):
            self.weight = runner.model.weight.detach().clone()

        def after_train_iter(self, runner):
            changed = not torch.equal(self.weight, runner.model.weight)
            self.seen.append((changed, runner.outputs["loss"].requires_grad))

    runner, look = make_runner(), Look()
    runner.register_hook(look)
    runner.run([loader()], [("train", 1)])
    assert look.seen == [(True, False)] * 4


def test_runner_model_is_the_users_module():
    model = nn.Linear(3, 2)
    runner = make_runner(model=model)
    runner.run([loader()], [("train", 1)])
    assert runner.model is model


def test_train_step_may_leave_num_samples_out():
    class Model(nn.Linear):
        def train_step(self, data, optimizer):
            loss = nn.functional.cross_entropy(self(data[0]), data[1])
            return {"loss": loss, "log_vars": {"loss": loss}}

    runner = make_runner(model=Model(3, 2), loss=None)
    runner.run([loader()], [("train", 1)])
    assert runner.outputs["num_samples"] == 4


def test_work_dir_may_be_a_path_and_meta_is_copied(tmp_path):
    meta = {"note": 1}
    runner = make_runner(work_dir=Path(tmp_path) / "out", meta=meta, logger=None)
    assert meta == {"note": 1} and Path(runner.work_dir).is_dir()


def test_a_workflow_that_never_trains_is_refused():
    with pytest.raises(ConfigError, match="never trains"):
        make_runner().run([loader()], [("val", 1)])


def test_a_checkpoint_hook_of_a_config_runs_last():
    runner = make_runner()
    runner.register_checkpoint_hook({"interval": 1})
    runner.register_hook(Hook(), "VERY_LOW")
    assert isinstance(runner.hooks[-1], CheckpointHook)


def test_the_average_is_not_in_the_model_of_a_checkpoint(tmp_path):
    from safetensors.torch import load_file

    runner = make_runner(work_dir=tmp_path)
    runner.register_hook(EMAHook(momentum=0.01))
    runner.register_checkpoint_hook({"interval": 1})
    runner.run([loader()], [("train", 1)])
    saved = load_file(tmp_path / "checkpoints/step-00000004/model.safetensors")
    assert torch.equal(saved["weight"], runner.model.weight.detach())


def test_filename_tmpl_writes_the_files_of_mmcv(tmp_path):
    runner = make_runner(work_dir=tmp_path)
    runner.register_checkpoint_hook({"interval": 1, "filename_tmpl": "epoch_{}.pth"})
    runner.run([loader()], [("train", 1)])
    (path,) = tmp_path.rglob("*.pth")
    assert path.name == "epoch_1.pth"
    assert set(torch.load(path)) == {"meta", "state_dict", "optimizer"}


def test_remote_paths_are_refused():
    with pytest.raises(RuntimeError, match="--allow-download"):
        make_runner().load_checkpoint("https://example.org/a.pth")
    with pytest.raises(RuntimeError, match="download it first"):
        make_runner().load_checkpoint("torchvision://resnet50")


def test_a_schedule_by_epoch_is_refused_where_there_are_no_epochs():
    runner = make_runner(IterBasedRunner)
    runner.register_lr_hook({"policy": "step", "step": 1, "by_epoch": True})
    with pytest.raises(ConfigError, match="by_epoch"):
        runner.run([loader()], [("train", 1)])


def refused(call, *errors):
    with pytest.raises(errors or ConfigError):
        call()


def test_what_is_said_to_be_refused_is():
    refused(lambda: get_priority(True), TypeError)
    refused(lambda: CheckpointHook(file_client_args={}), UnsupportedFeatureError)
    refused(lambda: check_config({"total_epochs": 3}))
    refused(lambda: check_config({"optimiser": {}}))
    refused(lambda: Config.fromstring("import os\na = os.getcwd()", ".py"))
    refused(lambda: Config.fromstring("a: 1\na: 2", ".yaml"))
    refused(lambda: Config.fromstring("a: !!python/name:os.system", ".yaml"))
    refused(lambda: Config.fromstring("a = '{{ _base_.x }}'", ".py"))


def test_yaml_is_that_of_version_1_2():
    cfg = Config.fromstring("a: 1e-3\nb: no\nc: on\nd: 12:30", ".yaml")
    assert (cfg.a, cfg.b, cfg.c, cfg.d) == (0.001, "no", "on", "12:30")


def test_words_of_cfg_options_keep_spaces_and_may_be_dicts():
    assert parse_value("a b") == "a b"
    assert parse_value("{'a': 1}") == {"a": 1}


def test_errors_are_also_the_built_in_ones():
    refused(lambda: MODELS.build({"type": "Nothing"}), KeyError)
    refused(lambda: MODELS.build({"type": "MLP", "wrong": 1}), TypeError)
    refused(lambda: Config.fromfile("nowhere.yaml"), FileNotFoundError)
    refused(lambda: make_runner().resume("nowhere"), FileNotFoundError)
    refused(lambda: make_runner(max_iters=1), ValueError)
