"""Whatever the device: the same run, through the runner's own doors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from devrun.devices.base import DeviceAdapter
from devrun.devices.options import IndexedOptions
from devrun.devices.resolve import register_device, resolve_device
from devrun.errors import ConfigError
from devrun.hooks import EnergyHook, Hook
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


class SaveAmid(Hook):
    """Saves in the background after an epoch, and lets the training go on."""

    path = ""

    def after_train_epoch(self, runner: Any) -> None:
        self.path = self.path or runner.save_checkpoint(background=True)


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
    for hook in (record, EnergyHook()):  # whose counter must work where there is one
        runner.register_hook(hook)
    runner.register_training_hooks(lr_config)
    return runner, record


def finished(
    device: Any, kind: Any = EpochBasedRunner, batch_size: int = 4
) -> tuple[Any, Record]:
    runner, record = run(device, kind)
    size = batch_size // runner.world_size
    loaders = [loader(24, size, shuffle=True), loader(8, size)]
    runner.run(loaders, [("train", 1), ("val", 1)])
    runner.close()
    return runner, record


def resumed(device: Any, path: str, data: Any) -> tuple[nn.Module, list[float]]:
    """The model in the end, and the losses since the checkpoint."""
    runner, record = run(device)
    runner.resume(path)
    runner.run([data], [("train", 1)])
    runner.close()
    return runner.model, record.losses


def of_two(adapter: type[DeviceAdapter], device: Any) -> dict[str, list[Any]]:
    """The weights that one of two processes has in the end, to send to a third."""
    register_device(adapter.name, adapter, force=True)  # by whoever started this one
    runner, _ = finished(device)
    assert runner.world_size == 2
    return {name: value.tolist() for name, value in runner.model.state_dict().items()}


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

    def test_what_performance_sets_trains_or_is_refused(self) -> None:
        try:
            runner, record = run(self.section(performance="fast"), epochs=1)
        except ConfigError:
            return  # it has no such option
        reference, expected = run("cpu", epochs=1)
        for one in (runner, reference):
            one.run([loader(24, 4)], [("train", 1)])
            one.close()
        # bf16, which it may choose, has 8 bits
        assert record.losses == pytest.approx(expected.losses, rel=0.02)

    def test_a_checkpoint_is_resumed_here_to_the_bit_and_on_the_cpu(
        self, tmp_path: Path
    ) -> None:
        data, saving = loader(24, 4, shuffle=True), SaveAmid()
        whole, record = run(self.device, work_dir=tmp_path)
        whole.register_hook(saving)
        whole.run([data], [("train", 1)])
        whole.close()
        expected = record.losses[len(record.losses) // 2 :]
        theirs = whole.model.state_dict()
        here, losses = resumed(self.device, saving.path, data)
        assert losses == expected
        for name, value in here.state_dict().items():
            assert torch.equal(value.cpu(), theirs[name].cpu())
        on_cpu, losses = resumed("cpu", saving.path, data)
        assert losses == pytest.approx(expected, rel=self.rtol)
        self.assert_same_weights(theirs, on_cpu)

    def test_several_processes_train_as_one(self) -> None:
        chosen = resolve_device(self.device)
        adapter, here = type(chosen), len(chosen.list_devices())
        if getattr(adapter, "dist_backend", None) is None:
            pytest.skip("it names no dist_backend: one process trains")
        if isinstance(getattr(chosen, "options", None), IndexedOptions) and here < 2:
            pytest.skip(f"two processes take two of the device, {here} is here")
        config = LaunchConfig(1, 1, 2, max_restarts=0)
        config.rdzv_backend, config.rdzv_endpoint = "c10d", "localhost:0"
        found = elastic_launch(config, of_two)(adapter, self.device)
        assert found[0] == found[1]
        weights = {name: torch.tensor(value) for name, value in found[0].items()}
        self.assert_same_weights(weights, finished("cpu")[0].model)
