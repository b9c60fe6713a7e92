"""The same small training on the emulated Gaudi and on the CPU, for the cases."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.devices.hpu.probes.counts import Counts
from devrun.devices.resolve import resolve_device
from devrun.hooks import Hook
from devrun.probes.compile_log import CompileLog
from devrun.runners import EpochBasedRunner
from tests.support.observe import Losses

MODE = {}


def set_up(mode):
    """Claim the device before anything else uses torch's autograd."""
    MODE["mode"] = mode
    resolve_device(device()).setup(None)


def device(**options):
    return {"type": "hpu", "emulate": True, **MODE, **options}


def net(dropout=0.0, hidden=16):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, hidden), nn.Tanh(), nn.Dropout(dropout), nn.Linear(hidden, 3)
    )


def loader(samples=48, batch_size=4, **options):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(samples, 4, generator=generator)
    data = TensorDataset(inputs, torch.arange(samples) % 3)
    return DataLoader(data, batch_size=batch_size, shuffle=True, **options)


def make(
    where, model=None, optimizer=None, epochs=2, policy=None, lr_config=None, **options
):
    """A runner that trains `model` on `where`, and its losses."""
    model = net() if model is None else model
    own = hasattr(model, "train_step")
    make_optimizer = optimizer or (lambda params: torch.optim.SGD(params, lr=0.1))
    runner = EpochBasedRunner(
        model,
        optimizer=make_optimizer(model.parameters()),
        loss=None if own else nn.CrossEntropyLoss(),
        max_epochs=epochs,
        device=where,
        seed=3,
        optimizer_config=policy,
        **options,
    )
    losses = Losses()
    runner.register_hook(losses)
    runner.register_training_hooks(lr_config)
    return runner, losses


class Counting(Hook):
    """What a check would say of the updates of a run."""

    priority = "LOWEST"

    def before_run(self, runner):
        self.log = CompileLog()
        self.counts = Counts(runner.adapter.sdk.emulator)

    def after_train_iter(self, runner):
        self.counts.update()

    @property
    def findings(self):
        found = [*self.counts.findings(), *self.counts.compiled_again()]
        return found + (list(self.log.findings()) if MODE["mode"] == "compile" else [])


def train(where, data=None, **options):
    """Train to the end; the closed runner and the losses of all updates."""
    runner, losses = make(where, **options)
    runner.run([loader() if data is None else data], [("train", 1)])
    values = losses.values
    runner.close()
    return runner, values


def weights(runner):
    return {k: v.detach().cpu() for k, v in runner.model.state_dict().items()}


def close(first, second, tolerance=1e-5):
    """Both runs had the same losses and ended with the same weights."""
    torch.testing.assert_close(
        torch.tensor(first[1]), torch.tensor(second[1]), rtol=1e-4, atol=tolerance
    )
    theirs = weights(second[0])
    for name, value in weights(first[0]).items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-3, atol=tolerance * 10)
