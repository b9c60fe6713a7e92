"""A small real run, for the tests of one hook or a few."""

import functools
import logging

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.hooks.base import Hook
from devrun.runners import EpochBasedRunner, IterBasedRunner


class Rates(Hook):
    """Notes what each update uses; asks the run to stop after `stop_at` of all."""

    priority = "LOWEST"

    def __init__(self):
        self.lrs = []
        self.momenta = []
        self.stop_at = None

    def before_train_iter(self, runner):
        optimizer = runner.optimizer
        several = optimizer.values() if isinstance(optimizer, dict) else [optimizer]
        groups = [group for one in several for group in one.param_groups]
        self.lrs.append([float(group["lr"]) for group in groups])
        self.momenta.append(
            [group.get("momentum", group.get("betas", (None,))[0]) for group in groups]
        )

    def after_train_iter(self, runner):
        if runner.iter + 1 == self.stop_at:
            runner.request_stop("the test has seen enough")


def own_update(model, batch, optimizer):
    """The train_step of a model that steps several optimizers itself, as a GAN's."""
    inputs, _ = batch
    loss = mean_square(model(inputs), None)
    for one in optimizer.values():
        one.zero_grad()
    loss.backward()
    for one in optimizer.values():
        one.step()
    return {"loss": loss, "log_vars": {}, "num_samples": len(inputs)}


def mean_square(output, target):
    return output.square().mean()


def batches(length):
    """`length` batches of 4 samples with 3 values, the same ones each time."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4 * length, 3, generator=generator)
    return DataLoader(TensorDataset(inputs, torch.zeros(4 * length)), batch_size=4)


class TracedRun:
    """Trains a 3 -> 2 linear model on the host; `lrs` and `momenta` of each update.

    `optimizer` makes one, or several by name, for the model. `max_iters` among the
    options of the runner makes it one that counts iterations.
    """

    def __init__(self, *hooks, length=4, model=None, optimizer=None, **options):
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2) if model is None else model
        made = (
            torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            if optimizer is None
            else optimizer(self.model)
        )
        options = {"device": "cpu", **options}
        if isinstance(made, dict):
            self.model.train_step = functools.partial(own_update, self.model)
        else:
            options.setdefault("loss", mean_square)
        kind = IterBasedRunner if "max_iters" in options else EpochBasedRunner
        logger = logging.getLogger("devrun.test")
        self.runner = kind(self.model, optimizer=made, logger=logger, **options)
        self.optimizer = made
        self.loader = batches(length)
        self.rates = Rates()
        for hook in (*hooks, self.rates):
            self.runner.register_hook(hook)

    def run(self, stop_at=None, workflow=("train",)):
        """To the end, or only until `stop_at` updates are done."""
        self.rates.stop_at = stop_at
        phases = [(mode, 1) for mode in workflow]
        self.runner.run([self.loader] * len(phases), phases)
        return self

    def save(self, folder, *names):
        """The checkpoint that `load` takes."""
        return self.runner.save_checkpoint(folder, *names)

    def load(self, checkpoint, **options):
        self.runner.resume(checkpoint, **options)
        return self

    @property
    def lrs(self):
        return self.rates.lrs

    @property
    def momenta(self):
        return self.rates.momenta

    @property
    def first_lrs(self):
        return [rates[0] for rates in self.lrs]

    @property
    def first_momenta(self):
        return [values[0] for values in self.momenta]
