"""Runner subclasses written for MMCV: a step or a whole loop of their own."""

import pytest
import torch

from devrun.hooks import Hook, OptimizerHook
from devrun.runners import EpochBasedRunner, IterBasedRunner
from tests.mmcv_compat.mmcv_style import loader, runner_of

CLIPPED = {"grad_clip": {"max_norm": 0.5}}


class OwnStep(EpochBasedRunner):
    """`run_iter` as MMCV has it: the update is left to the optimizer hook."""

    def run_iter(self, data_batch, train_mode, **kwargs):
        step = self.model.train_step if train_mode else self.model.val_step
        outputs = step(data_batch, self.optimizer, **kwargs)
        self.log_buffer.update(outputs["log_vars"], outputs["num_samples"])
        self.outputs = outputs


class StockStep(OwnStep):
    """Begins as MMCV's own, which asks for a batch processor."""

    def run_iter(self, data_batch, train_mode, **kwargs):
        assert self.batch_processor is None
        super().run_iter(data_batch, train_mode, **kwargs)


class AroundStep(EpochBasedRunner):
    """`run_iter` with something around the one of the base class."""

    seen = 0

    def run_iter(self, data_batch, train_mode, **kwargs):
        super().run_iter(data_batch, train_mode, **kwargs)
        self.seen += 1


class OwnEpoch(EpochBasedRunner):
    """A whole `train`, copied in spirit from MMCV's documentation."""

    def train(self, data_loader, **kwargs):
        self.model.train()
        self.mode, self.data_loader = "train", data_loader
        self._max_iters = self._max_epochs * len(data_loader)
        self.call_hook("before_train_epoch")
        for self._inner_iter, self.data_batch in enumerate(data_loader):
            self.call_hook("before_train_iter")
            self.step()
            self.call_hook("after_train_iter")
            self._iter += 1
        self.call_hook("after_train_epoch")
        self._epoch += 1

    def step(self):
        self.run_iter(self.data_batch, train_mode=True)


class OwnEpochAndStep(OwnEpoch):
    def step(self):
        self.outputs = self.model.train_step(self.data_batch, self.optimizer)


class OwnIteration(IterBasedRunner):
    def train(self, data_loader, **kwargs):
        self.mode, self.data_loader = "train", data_loader
        self.data_batch = next(data_loader)
        self.call_hook("before_train_iter")
        self.outputs = self.model.train_step(self.data_batch, self.optimizer)
        self.call_hook("after_train_iter")
        self._inner_iter += 1
        self._iter += 1


def trained(kind, optimizer_config, **options):
    runner = runner_of(kind, **options)
    runner.register_training_hooks(
        {"policy": "step", "step": [1], "by_epoch": "max_iters" not in options},
        optimizer_config,
        timer_config=False,
    )
    runner.run([loader()], [("train", 1)])
    return runner


def weights(runner):
    return torch.cat([p.detach().flatten() for p in runner.model.parameters()])


@pytest.mark.parametrize(
    "kind", [OwnStep, StockStep, AroundStep, OwnEpoch, OwnEpochAndStep]
)
def test_an_epoch_runner_of_ones_own_trains_as_the_shipped_one(kind):
    mine, shipped = trained(kind, CLIPPED), trained(EpochBasedRunner, CLIPPED)
    assert torch.equal(weights(mine), weights(shipped))
    assert (mine.epoch, mine.iter) == (2, 8)


def test_an_iteration_runner_of_ones_own_trains_as_the_shipped_one():
    mine = trained(OwnIteration, CLIPPED, max_iters=6)
    assert torch.equal(
        weights(mine), weights(trained(IterBasedRunner, CLIPPED, max_iters=6))
    )


class Inner(Hook):
    def __init__(self):
        self.seen = []

    def before_train_iter(self, runner):
        self.seen.append(runner.inner_iter)


@pytest.mark.parametrize("kind", [OwnIteration, IterBasedRunner])
def test_an_inner_iteration_is_counted_from_the_beginning_of_its_phase(kind):
    runner, inner = runner_of(kind, max_iters=5), Inner()
    runner.register_hook(inner)
    runner.run([loader(), loader()], [("train", 2), ("val", 1)])
    assert inner.seen == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("kind", [OwnStep, AroundStep])
def test_a_hook_of_ones_own_does_the_update_in_such_a_runner(kind):
    class Mine(OptimizerHook):
        def after_train_iter(self, runner):
            super().after_train_iter(runner)

    mine = trained(kind, Mine(**CLIPPED))
    assert torch.equal(weights(mine), weights(trained(EpochBasedRunner, CLIPPED)))


def test_a_checkpoint_of_a_loop_of_ones_own_continues_behind_the_whole_epoch(tmp_path):
    first = runner_of(OwnEpochAndStep, max_epochs=1, work_dir=tmp_path)
    first.register_training_hooks(None, CLIPPED, {"interval": 1})
    first.run([loader()], [("train", 1)])
    second = runner_of(OwnEpochAndStep, max_epochs=2)
    second.register_optimizer_hook(CLIPPED)
    second.resume(first.meta["hook_msgs"]["last_ckpt"])
    assert (second.epoch, second.iter) == (1, 4)
    second.run([loader()], [("train", 1)])
    assert (second.epoch, second.iter) == (2, 8)
