"""A run that meets bad data goes back, leaves it out, and remembers that it did."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from devrun.errors import DivergedError
from devrun.hooks import Hook
from tests.runners.test_resume import StopAt
from tests.support.noisy import Augmented, runner, same, weights
from tests.support.observe import Losses


class Poisoned(Augmented):
    """Some samples are not finite, or far away."""

    def __init__(self, bad, value=float("nan")):
        super().__init__()
        for index in bad:
            self.inputs[index] = value


class Samples(Hook):
    """Each batch that an update was tried with."""

    def __init__(self):
        self.seen = []

    def before_train_iter(self, runner):
        self.seen.append(runner.data_batch)


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def trained(
    work_dir, by_epoch, bad, policy=None, *, stop=None, hooks=(), workers=0, **changes
):
    run = runner(by_epoch, 2 if by_epoch else 12, model=net(), work_dir=work_dir)
    policy = {"nonfinite": "rollback", **(policy or {})}
    checkpoints = {"interval": 2, "by_epoch": False, **changes}
    run.register_training_hooks(None, policy, checkpoints)
    losses, samples = Losses(), Samples()
    for hook in (losses, samples, *hooks, *([StopAt(stop)] if stop else ())):
        run.register_hook(hook)
    run.resume("auto")
    run.run([DataLoader(Poisoned(bad), batch_size=4, num_workers=workers)])
    return run, losses.values, samples.seen


@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize(("background", "workers"), [(True, 0), (False, 2)])
def test_the_window_is_left_out(tmp_path, capsys, by_epoch, background, workers):
    # the 4th batch is bad: back to update 2, past batches 3 and 4
    run, losses, samples = trained(
        tmp_path, by_epoch, [13], workers=workers, **{"async": background}
    )
    assert all(value == value for value in losses)
    assert "rollback 1 of at most 3" in capsys.readouterr().err
    if by_epoch:
        assert len(samples) == 12  # each batch is met once in an epoch
        assert run.iter == 12 - 4  # two epochs, two updates left out in each
    else:
        assert len(samples) == 18  # it goes on until 12 updates are done
        assert run.iter == 12


@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize("stop", [4, 5])
def test_it_resumes_exactly_after_a_rollback(tmp_path, by_epoch, stop):
    whole, expected, _ = trained(tmp_path / "whole", by_epoch, [13])
    _, first, _ = trained(tmp_path / "cut", by_epoch, [13], stop=stop)
    resumed, second, _ = trained(tmp_path / "cut", by_epoch, [13])
    assert first + second == expected
    assert same(weights(resumed), weights(whole))


def test_a_kill_after_the_rollback_does_not_meet_the_data_again(tmp_path):
    class Killed(RuntimeError):
        pass

    class KillAfter(Hook):
        def before_train_iter(self, runner):
            if runner.iter == 2 and runner.inner_iter == 4:
                raise Killed

    with pytest.raises(Killed):
        trained(tmp_path, True, [13], hooks=[KillAfter()])
    run, losses, samples = trained(tmp_path, True, [13])
    # batches 5 and 6; of the next epoch 1 to 3, and 5 and 6
    assert len(losses) == len(samples) - 1 == 7
    assert run.iter == 8


def test_after_so_many_times_it_stops(tmp_path):
    bad = [5, 13, 21]
    with pytest.raises(DivergedError, match="went back 2 times.*max_rollbacks is 2"):
        trained(tmp_path, True, bad, {"max_rollbacks": 2}, interval=1)
    # the count is in the checkpoint: a resumed run does not begin to count anew
    with pytest.raises(DivergedError, match="went back 2 times"):
        trained(tmp_path, True, bad, {"max_rollbacks": 2}, interval=1)


def test_without_a_checkpoint_there_is_no_way_back(tmp_path):
    with pytest.raises(DivergedError, match="no checkpoint to go back to"):
        trained(tmp_path, True, [1])


def test_with_accumulation(tmp_path):
    policy = {"cumulative_iters": 2}
    run, losses, _ = trained(tmp_path, True, [21], policy, interval=1)
    # 3 updates an epoch, the 3rd is bad: in each epoch one update is left out
    assert run.iter == len(losses) == 4
