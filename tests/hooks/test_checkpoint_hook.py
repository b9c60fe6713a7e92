import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.checkpoint import list_checkpoints, read_checkpoint, step_name
from devrun.config import Config
from devrun.config.schema import check_config
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.hooks.base import Hook
from devrun.hooks.checkpoint import CheckpointHook
from devrun.runners.kinds import EpochBasedRunner, IterBasedRunner


@pytest.fixture
def run(tmp_path):
    """Trains to the end with a checkpoint hook; the runner. Two updates an epoch."""

    def train(hook, *more, iters=None, epochs=None, work_dir=tmp_path / "work"):
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        runner = (EpochBasedRunner if epochs else IterBasedRunner)(
            model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            work_dir=work_dir,
            max_epochs=epochs,
            max_iters=iters,
            loss=nn.functional.mse_loss,
        )
        for one in (hook, *more):
            runner.register_hook(one)
        data = TensorDataset(torch.randn(8, 2), torch.randn(8, 1))
        runner.run([DataLoader(data, batch_size=4)], [("train", 1)])
        runner.close()
        return runner

    return train


def steps(root):
    return [info.step for info in list_checkpoints(root)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"interval": 1}, [2, 4, 6, 8, 10]),
        ({"interval": 2}, [4, 8, 10]),
        ({"interval": 2, "save_last": False}, [4, 8]),
        ({}, [10]),
        ({"save_last": False}, []),
        ({"interval": 3, "by_epoch": False}, [3, 6, 9, 10]),
        ({"interval": 1, "max_keep_ckpts": 2}, [8, 10]),
        ({"interval": 3, "by_epoch": False, "max_keep_ckpts": 2}, [9, 10]),
        ({"interval": 1, "max_keep_ckpts": 1}, [10]),
    ],
    ids=str,
)
def test_an_epoch_run_leaves_these_checkpoints(run, tmp_path, options, expected):
    run(CheckpointHook(**options), epochs=5)
    assert steps(tmp_path / "work" / "checkpoints") == expected


def test_an_iteration_run_counts_iterations(run, tmp_path):
    run(CheckpointHook(interval=2, by_epoch=False, max_keep_ckpts=2), iters=7)
    assert steps(tmp_path / "work" / "checkpoints") == [6, 7]


def test_the_last_checkpoint_names_itself(run, tmp_path):
    runner = run(CheckpointHook(interval=1), epochs=2)
    path = tmp_path / "work" / "checkpoints" / step_name(4)
    assert runner.meta["hook_msgs"]["last_ckpt"] == str(path)
    found = read_checkpoint(path)
    assert found.manifest.meta["hook_msgs"]["last_ckpt"] == str(path)


def test_without_the_optimizer_the_part_is_not_there(run, tmp_path):
    run(CheckpointHook(save_optimizer=False), epochs=1)
    found = read_checkpoint(tmp_path / "work" / "checkpoints" / step_name(2))
    assert "optimizer" not in found
    assert "model" in found


def test_another_directory_gets_a_folder_named_as_the_run(run, tmp_path):
    run(CheckpointHook(out_dir=tmp_path / "elsewhere"), epochs=1)
    assert steps(tmp_path / "elsewhere" / "work") == [2]
    assert "checkpoints" not in os.listdir(tmp_path / "work")


class StopAfter(Hook):
    def __init__(self, iters):
        self.iters = iters

    def after_train_iter(self, runner):
        if runner.iter + 1 == self.iters:
            runner.request_stop("enough")


def test_a_run_that_was_stopped_keeps_where_it_was(run, tmp_path):
    run(CheckpointHook(interval=10), StopAfter(3), epochs=5)
    assert steps(tmp_path / "work" / "checkpoints") == [3]


def test_what_a_killed_run_left_is_removed_at_the_start(run, tmp_path):
    root = tmp_path / "work" / "checkpoints"
    (root / ".tmp-step-00000001-0123456789ab").mkdir(parents=True)
    run(CheckpointHook(), epochs=1)
    assert sorted(os.listdir(root)) == ["latest.json", step_name(2)]


def test_a_run_without_a_work_dir_says_what_is_missing(run):
    with pytest.raises(ConfigError, match="give the runner a work_dir"):
        run(CheckpointHook(), epochs=1, work_dir=None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"filename_tmpl": "epoch_{}.pth"}, "devrun export"),
        ({"file_client_args": {}}, "local paths"),
    ],
    ids=str,
)
def test_what_mmcv_alone_writes_is_refused_with_what_to_do(options, reason):
    with pytest.raises(UnsupportedFeatureError, match=reason):
        CheckpointHook(**options)


class Inside(Hook):
    def __init__(self, act):
        self.act = act

    def after_train_epoch(self, runner):
        if runner.epoch == 1:
            self.act()


def test_a_second_run_of_the_process_is_refused_the_directory(run, tmp_path):
    def again():
        with pytest.raises(ConfigError, match="in use by another run of this process"):
            run(CheckpointHook(1), epochs=1)

    first = run(CheckpointHook(1), Inside(again), epochs=3)
    found = list_checkpoints(tmp_path / "work" / "checkpoints")
    assert [info.step for info in found] == [2, 4, 6]
    assert {info.manifest.run_id for info in found} == {first.checkpointer.run_id}
    run(CheckpointHook(1), epochs=1)  # after it has ended, the place is free


def test_a_config_may_ask_for_whole_tensors():
    check_config(Config({"checkpoint_config": {"full": True}}))
