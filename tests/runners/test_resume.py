"""A stopped run comes back and ends bit for bit as one never stopped."""

import pytest
import torch

from devrun.errors import CheckpointError
from devrun.hooks import Hook
from tests.support.noisy import loader, runner, same, weights
from tests.support.observe import Losses


class StopAt(Hook):
    def __init__(self, update):
        self.update = update

    def after_train_iter(self, runner):
        if runner.iter + 1 == self.update:
            runner.request_stop("test")


def train(work_dir, by_epoch, limit, *, stop=None, workers=0, **options):
    run = runner(by_epoch, limit, work_dir=work_dir, **options)
    run.register_training_hooks(
        {"policy": "CosineAnnealing", "min_lr": 0.0, "by_epoch": False},
        {"grad_clip": {"max_norm": 1.0}},
        {"interval": 1, "by_epoch": by_epoch},
    )
    losses = Losses()
    run.register_hook(losses)
    if stop is not None:
        run.register_hook(StopAt(stop))
    run.resume("auto")
    run.run([loader(num_workers=workers)])
    return run, losses.values


def test_the_number_of_workers_may_change(tmp_path):
    whole, expected = train(tmp_path / "whole", True, 2)
    _, first = train(tmp_path / "cut", True, 2, stop=4, workers=2)
    resumed, second = train(tmp_path / "cut", True, 2)
    assert first + second == expected
    assert same(weights(resumed), weights(whole))


def test_an_unseeded_run_keeps_its_data_order(tmp_path):
    torch.manual_seed(11)
    _, expected = train(tmp_path / "whole", True, 2, seed=None)
    torch.manual_seed(11)
    _, first = train(tmp_path / "cut", True, 2, seed=None, stop=4)
    torch.manual_seed(99)
    _, second = train(tmp_path / "cut", True, 2, seed=None)
    assert first + second == expected


def test_hooks_get_their_state_back(tmp_path):
    class Counter(Hook):
        count = 0

        def after_train_iter(self, runner):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    counters = []
    for stop in (5, None):
        run = runner(True, 2, work_dir=tmp_path)
        run.register_checkpoint_hook({"interval": 1})
        counters.append(Counter())
        run.register_hook(counters[-1])
        if stop:
            run.register_hook(StopAt(stop))
        run.resume("auto")
        run.run([loader()])
    assert [counter.count for counter in counters] == [5, 12]


def test_auto_prefers_regular_checkpoints_and_falls_back_from_damage(tmp_path):
    run, _ = train(tmp_path, True, 2)
    run.save_checkpoint(name="best_accuracy_epoch_9")
    checkpoints = tmp_path / "checkpoints"
    again = runner(True, 2, work_dir=tmp_path)
    again.resume("auto")
    assert again.meta["hook_msgs"]["last_ckpt"].endswith("step-00000012")
    weights_file = checkpoints / "step-00000012" / "model.safetensors"
    data = bytearray(weights_file.read_bytes())
    data[-1] ^= 1
    weights_file.write_bytes(data)
    older = runner(True, 2, work_dir=tmp_path)
    older.resume("auto")
    assert older.iter == 6
    with pytest.raises(CheckpointError, match="sha256"):
        runner(True, 2).resume(checkpoints / "step-00000012")
