"""What the runs of this suite are made of; configs name it under `custom_imports`."""

import ctypes
import os
import random
import time

import numpy
import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class Noisy(Dataset):
    """Samples with noise from the three global streams.

    `fault` is what happens at the sample `at`, the `nth` time: a method of this class.
    """

    def __init__(self, length=12, at=-1, fault="raises", every=0, nth=1):
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(length, 4, generator=generator)
        self.labels = (self.inputs.sum(1) > 0).long()
        self.at, self.fault, self.every, self.left = at, fault, every, nth

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        self.left -= index == self.at
        at = index == self.at and self.left <= 0
        if at or (self.every and index % self.every == 0):
            getattr(self, self.fault)()
        noise = torch.rand(4) + random.random() + numpy.random.rand()
        return self.inputs[index] + 0.1 * noise, self.labels[index]

    def raises(self):
        raise ValueError("this image cannot be decoded")

    def hangs(self):
        time.sleep(1000)

    def dies(self):
        os.kill(os.getpid(), 9)


@DATASETS.register_module()
class Numbered(Dataset):
    """Sample n is four times n / 100."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((4,), index / 100), index % 2


@MODELS.register_module()
def noisy_net(hidden=8, room=None):
    """A classifier with dropout and running statistics; memory for `room` samples."""
    net = nn.Sequential(
        nn.Linear(4, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(hidden, 2),
    )

    def allocate(_, inputs):
        if room is not None and len(inputs[0]) > room:
            raise torch.cuda.OutOfMemoryError("out of memory: tried to allocate 2 GiB")

    net.register_forward_pre_hook(allocate)
    return net


@HOOKS.register_module()
class Acknowledge(Hook):
    """Appends a line for each update: done, last saved, loss to the last bit.

    One `write` each, so that a killed process has said all that it has done.
    """

    priority = "LOWEST"

    def __init__(self, path):
        self.path = path

    def after_train_iter(self, runner):
        loss = float(runner.outputs["loss"])
        line = f"{runner.iter + 1} {runner.checkpointer.last_saved_iter} {loss.hex()}\n"
        with open(self.path.format(rank=runner.rank), "a") as file:
            file.write(line)


@HOOKS.register_module()
class WhichSamples(Hook):
    """Appends a line for each update: its number and the samples of `Numbered`."""

    def __init__(self, path):
        self.path = path

    def after_train_iter(self, runner):
        numbers = [round(100 * float(row[0])) for row in runner.data_batch[0]]
        path = self.path.format(rank=runner.rank, start=starts_before())
        with open(path, "a") as file:
            file.write(" ".join(map(str, [runner.iter + 1, *numbers])) + "\n")


def starts_before():
    """How often torchrun has started this group of processes anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


@HOOKS.register_module()
class OneRank(Hook):
    """Lets one process fail at its update `at`, in its first start only.

    `fault` is a method of this class; the file `path` says that it comes now.
    """

    def __init__(self, rank, at, fault, path):
        self.rank, self.at = rank, at
        self.fault, self.path = fault, path

    def before_train_iter(self, runner):
        if (runner.rank, runner.iter, starts_before()) == (self.rank, self.at, 0):
            open(self.path, "w").close()
            getattr(self, self.fault)()

    def dies(self):
        os.kill(os.getpid(), 9)

    def raises(self):
        raise ValueError("one process alone fails")

    def is_slow(self):
        time.sleep(3)

    def stalls(self):
        time.sleep(1000)


@HOOKS.register_module()
class Slow(Hook):
    def __init__(self, seconds):
        self.seconds = seconds

    def after_train_iter(self, runner):
        time.sleep(self.seconds)


@HOOKS.register_module()
class Poison(Hook):
    """Puts NaN where it is told, before update `at`."""

    def __init__(self, at, where="weight", value="nan", times=1):
        self.at, self.where = at, where
        self.value, self.times = float(value), times

    def before_train_iter(self, runner):
        if not self.at <= runner.iter < self.at + self.times:
            return
        if self.where == "weight":
            with torch.no_grad():
                next(runner.model.parameters()).fill_(self.value)
        elif self.where == "gradient":
            weight = next(runner.model.parameters())
            weight.register_hook(lambda gradient: gradient * self.value)
        elif self.where == "input":
            batch = runner.data_batch
            while not isinstance(batch, torch.Tensor):  # micro-batches of (x, y)
                batch = batch[0]
            batch.fill_(self.value)


@HOOKS.register_module()
class KillAt(Hook):
    """Ends this process by SIGKILL at the nth time a stage is reached, and a bit."""

    priority = "LOW"

    def __init__(self, stage, nth=1, after=0.0, number=9):
        self.stage, self.left = stage, nth
        self.after, self.number = after, number

    def get_triggered_stages(self):
        return [self.stage]

    def reached(self, runner):
        self.left -= 1
        if self.left == 0:
            time.sleep(self.after)
            os.kill(os.getpid(), self.number)


for _stage in ("before_run", "before_train_iter", "after_train_iter",
               "after_train_epoch", "after_val_iter", "after_run"):  # fmt: skip
    setattr(KillAt, _stage, KillAt.reached)


@HOOKS.register_module()
class Stuck(Hook):
    """Calls C code that keeps the interpreter's lock."""

    def after_train_iter(self, runner):
        ctypes.PyDLL(None).sleep(1000)
