"""Cut anywhere, a run ends with the bits of one that was never cut."""

import itertools
import random

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from devrun.hooks import EMAHook, Hook
from devrun.runners import EpochBasedRunner, IterBasedRunner
from tests.faults.parts import Noisy, noisy_net
from tests.faults.test_forgetting import StopAt, frozen

UPDATES = 9
"""Of three epochs with three each."""
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}
PRECISIONS = {
    "fp32": {},
    "fp16": {"precision": "fp16", "loss_scale": {"growth_interval": 2}},
}
CUTS = {
    "first": (1,),
    "inside an epoch": (2,),
    "last of an epoch": (3,),
    "after an epoch": (4,),
    "last": (8,),
    "five times": (1, 2, 4, 6, 7),
}
KINDS = {"epoch": EpochBasedRunner, "iter": IterBasedRunner}


class Order(Hook):
    """The order of the samples, and the loss of every update, to the last bit."""

    def __init__(self, said):
        self.said = said

    def after_train_iter(self, runner):
        self.said[runner.iter + 1] = float(runner.outputs["loss"]).hex()


def trained(kind, workers, optimizer, accumulate, precision, cuts, place):
    """(final state, losses) of a run cut at `cuts` and resumed each time."""
    said, checkpoint = {}, None
    for stop in (*cuts, None):
        random.seed(len(said)), numpy.random.seed(len(said))
        torch.manual_seed(3)
        model = noisy_net()
        limit = {"max_epochs": 3} if kind == "epoch" else {"max_iters": UPDATES}
        runner = KINDS[kind](
            model, optimizer=OPTIMIZERS[optimizer](model.parameters()),
            loss=nn.CrossEntropyLoss(), device="cpu", seed=5,
            optimizer_config={"cumulative_iters": accumulate, **PRECISIONS[precision]},
            **limit,
        )  # fmt: skip
        policy = {"policy": "step", "step": [4], "by_epoch": False}
        runner.register_lr_hook({**policy, "warmup": "linear", "warmup_iters": 3})
        for hook in (EMAHook(momentum=0.2), Order(said), StopAt(stop)):
            runner.register_hook(hook)
        if checkpoint is not None:
            runner.resume(checkpoint)
        data = Noisy(6 * accumulate)
        loader = DataLoader(data, batch_size=2, shuffle=True, num_workers=workers)
        runner.run([loader], [("train", 1)])
        if stop is not None:
            checkpoint = runner.save_checkpoint(place / str(stop))
        runner.close()
    state = runner.model.state_dict(), runner.optimizer.state_dict()
    return frozen({"state": state, "hooks": runner.table.state_dict()}), said


CELLS = [
    cell
    for cell in itertools.product(KINDS, [0, 2, 4], OPTIMIZERS, [1, 4], PRECISIONS)
    if cell[2] != "LBFGS" or cell[4] == "fp32"  # which refuses a scaler
]


@pytest.mark.parametrize(
    "cells", [CELLS[3:4], pytest.param(CELLS, marks=pytest.mark.faults)],
    ids=["one", "all"],
)  # fmt: skip
def test_every_cut_of_every_kind_of_run(cells, tmp_path, figures):
    count = 0
    for number, cell in enumerate(cells):
        expected = trained(*cell, (), tmp_path)
        for name, cuts in CUTS.items():
            place = tmp_path / f"{number} {name}"
            assert trained(*cell, cuts, place) == expected, (cell, name)
            count += 1
    figures("F14", f"{count} of {count} cells of the matrix bit-identical")
