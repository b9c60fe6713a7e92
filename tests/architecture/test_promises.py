"""The nevers that only a run can show: 7, 10, 13 and 14."""

import copy
from typing import ClassVar

import pytest
import torch
from safetensors import safe_open
from torch import nn

from devrun.devices.resolve import available_devices, resolve_device
from devrun.errors import ConfigError, DeviceUnavailableError
from devrun.hooks.base import Hook
from devrun.optim import build_optimizer
from devrun.registry import MODELS, Registry, build_from_cfg
from devrun.runners import EpochBasedRunner, build_runner


class Net(nn.Module):
    num_classes: ClassVar[int] = 3

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, width), nn.BatchNorm1d(width))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.body(x))


def runner_for(work_dir=None, **kwargs):
    model = Net()
    return EpochBasedRunner(
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loss=nn.CrossEntropyLoss(),
        work_dir=work_dir,
        max_epochs=1,
        **kwargs,
    )


def loader():
    data = torch.utils.data.TensorDataset(torch.randn(8, 5), torch.arange(8) % 3)
    return torch.utils.data.DataLoader(data, batch_size=4)


def absent_devices():
    return [row.name for row in available_devices() if row.reason is not None]


@pytest.mark.parametrize("name", absent_devices())
def test_7_an_absent_device_is_refused_and_nothing_takes_its_place(name):
    with pytest.raises(DeviceUnavailableError, match="is not here: .{10,}"):
        resolve_device(name)
    with pytest.raises(DeviceUnavailableError):
        runner_for(device=name)


def test_7_auto_is_never_emulated():
    assert resolve_device("auto").emulated is False


def unchanged(cfg, use):
    """Run `use(cfg)`; `cfg` must be as before."""
    before = copy.deepcopy(cfg)
    result = use(cfg)
    assert cfg == before
    return result


def test_10_a_registry_leaves_the_config_alone():
    registry = Registry("things")
    registry.register_module("Net", module=Net)
    unchanged({"type": "Net", "width": 6}, lambda cfg: build_from_cfg(cfg, registry))
    assert "Net" not in MODELS


def test_10_the_optimizer_builder_leaves_the_config_alone():
    cfg = {
        "type": "SGD",
        "lr": 0.1,
        "weight_decay": 0.01,
        "paramwise_cfg": {
            "norm_decay_mult": 0.0,
            "custom_keys": {"head": {"lr_mult": 2}},
        },
    }
    unchanged(cfg, lambda cfg: build_optimizer(Net(), cfg))


def test_10_the_runner_builder_leaves_the_config_alone():
    model = Net()
    args = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": nn.CrossEntropyLoss(),
    }
    cfg = {"type": "EpochBasedRunner", "max_epochs": 1}
    runner = unchanged(cfg, lambda cfg: build_runner(cfg, args))
    runner.close()


def test_10_hook_sections_are_left_alone(tmp_path):
    sections = {
        "lr_config": {
            "policy": "step",
            "step": [1],
            "warmup": "linear",
            "warmup_iters": 2,
        },
        "optimizer_config": {"grad_clip": {"max_norm": 1.0}},
        "checkpoint_config": {"interval": 1, "max_keep_ckpts": 1},
        "log_config": {"interval": 1, "hooks": [{"type": "TextLoggerHook"}]},
        "momentum_config": {"policy": "step", "step": [1]},
        "custom_hooks_config": [{"type": "EMAHook", "priority": "HIGH"}],
    }
    runner = runner_for(str(tmp_path / "out"))
    unchanged(sections, lambda cfg: runner.register_training_hooks(**cfg))
    unchanged(sections, lambda _: runner.run([loader()], [("train", 1)]))
    runner.close()


def test_10_a_device_mapping_is_left_alone():
    unchanged({"type": "cpu", "channels_last": True}, resolve_device)


class Misspelt(Hook):
    def after_train_itre(self, runner):
        pass


def test_13_a_stage_that_does_not_exist_is_refused_at_registration():
    runner = runner_for()
    with pytest.raises(ConfigError, match="after_train_iter"):
        runner.register_hook(Misspelt())
    runner.close()


def test_14_a_checkpoint_has_the_users_own_names_on_the_host(tmp_path):
    runner = runner_for(str(tmp_path))
    runner.register_training_hooks({"policy": "fixed"}, None, {"interval": 1})
    runner.run([loader()], [("train", 1)])
    runner.close()
    (path,) = (tmp_path / "checkpoints").glob("step-*")
    with safe_open(path / "model.safetensors", "pt", device="cpu") as stored:
        assert set(stored.keys()) == set(Net().state_dict())


def test_14_nothing_half_written_stays_behind(tmp_path):
    runner = runner_for(str(tmp_path))
    runner.register_training_hooks({"policy": "fixed"}, None, {"interval": 1})
    runner.run([loader()], [("train", 1)])
    runner.close()
    left = [p.name for p in tmp_path.rglob("*") if ".tmp" in p.name or ".del" in p.name]
    assert left == []
