"""Whatever the device: the same run, through the runner's own doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from devrun.hooks import Hook
from devrun.runners import EpochBasedRunner, IterBasedRunner
from devrun.testing.harness import AdapterTests, loader, net, sgd


class Record(Hook):
    """Stages in the order they came, and the loss of every update."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.losses: list[float] = []

    def before_train_epoch(self, runner: Any) -> None:
        self.order.append("before_train_epoch")

    def before_train_iter(self, runner: Any) -> None:
        self.order.append("before_train_iter")

    def after_train_iter(self, runner: Any) -> None:
        self.order.append("after_train_iter")
        self.losses.append(float(runner.outputs["loss"]))

    def after_train_epoch(self, runner: Any) -> None:
        self.order.append("after_train_epoch")

    def after_val_iter(self, runner: Any) -> None:
        self.order.append("after_val_iter")


def few_labels(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target % 4)


def run(
    device: Any, kind: Any = EpochBasedRunner, epochs: int = 2, **options: Any
) -> tuple[Any, Record]:
    model = net()
    limit = {"max_epochs": epochs} if kind is EpochBasedRunner else {"max_iters": 7}
    lr_config = {"policy": "step", "step": 2, "gamma": 0.5, "by_epoch": False}
    runner = kind(
        model,
        optimizer=sgd(model),
        loss=few_labels,
        device=device,
        seed=4,
        optimizer_config={"grad_clip": {"max_norm": 0.3}, "cumulative_iters": 2},
        **limit,
        **options,
    )
    record = Record()
    runner.register_hook(record)
    runner.register_training_hooks(lr_config)
    return runner, record


def finished(device: Any, kind: Any = EpochBasedRunner) -> tuple[Any, Record]:
    runner, record = run(device, kind)
    loaders = [loader(24, 4, shuffle=True), loader(8, 4)]
    runner.run(loaders, [("train", 1), ("val", 1)])
    runner.close()
    return runner, record


class RunTests(AdapterTests):
    """A whole run through the runner: stages, losses, weights, checkpoints."""

    @pytest.mark.parametrize("kind", [EpochBasedRunner, IterBasedRunner])
    def test_stages_losses_and_weights_are_those_of_the_cpu(self, kind: Any) -> None:
        runner, record = finished(self.device, kind)
        reference, expected = finished("cpu", kind)
        assert record.order == expected.order
        assert record.losses == pytest.approx(expected.losses, rel=self.rtol)
        assert (runner.epoch, runner.iter) == (reference.epoch, reference.iter)
        assert runner.current_lr() == reference.current_lr()
        self.assert_same_weights(runner.model.state_dict(), reference.model)

    def test_a_checkpoint_saved_here_is_resumed_on_the_cpu(
        self, tmp_path: Path
    ) -> None:
        whole, record = run("cpu")
        data = loader(24, 4, shuffle=True)
        whole.run([data], [("train", 1)])

        first, begun = run(self.device, epochs=1, work_dir=tmp_path)
        first.run([data], [("train", 1)])
        path = first.save_checkpoint()
        first.close()
        second, rest = run("cpu")
        second.resume(path)
        second.run([data], [("train", 1)])
        assert rest.losses == pytest.approx(
            record.losses[len(begun.losses) :], rel=self.rtol
        )
        self.assert_same_weights(second.model.state_dict(), whole.model)
        for one in (whole, second):
            one.close()
