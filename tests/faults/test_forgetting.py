"""Nothing is forgotten: whatever field of a checkpoint is missing, it is noticed."""

import copy
import random
import shutil

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from devrun.checkpoint import encode_tree, read_checkpoint, write_checkpoint
from devrun.errors import DevrunError
from devrun.hooks import EMAHook, Hook
from devrun.runners import EpochBasedRunner, IterBasedRunner
from tests.faults.parts import Noisy, noisy_net

CUT, END = 5, 9
"""Updates; an epoch has four."""


class Drawing(Hook):
    """Its state and the global streams of Python and NumPy go into the weights."""

    def __init__(self):
        self.sum = 0.0

    def state_dict(self):
        return {"sum": self.sum}

    def load_state_dict(self, state):
        self.sum = state["sum"]

    def after_train_iter(self, runner):
        self.sum += random.gauss(0, 1) + numpy.random.standard_normal()
        with torch.no_grad():
            runner.model[0].bias.add_(1e-3 * self.sum)

    def after_val_iter(self, runner):
        self.sum += 1


class StopAt(Hook):
    priority = "LOWEST"

    def __init__(self, update):
        self.update = update

    def after_train_iter(self, runner):
        if runner.iter + 1 == self.update:
            runner.request_stop("as planned")


def built(by_epoch, stop, seed):
    """(runner, loader) of a run that uses everything that has state."""
    torch.manual_seed(3)
    model = noisy_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    limit = {"max_epochs": 3} if by_epoch else {"max_iters": END}
    kind = EpochBasedRunner if by_epoch else IterBasedRunner
    runner = kind(
        model, optimizer=optimizer, loss=nn.CrossEntropyLoss(), device="cpu", seed=seed,
        optimizer_config={"grad_clip": {"max_norm": 1.0}}, **limit,
    )  # fmt: skip
    runner.register_lr_hook({"policy": "CosineAnnealing", "min_lr": 0.0})
    for hook in (EMAHook(momentum=0.2), Drawing(), StopAt(stop)):
        runner.register_hook(hook)
    return runner, DataLoader(Noisy(16), batch_size=4, shuffle=True)


def finished(by_epoch, checkpoint=None, stop=None, seeds=(0, 0)):
    """What a run is in the end, in a form that can be compared."""
    random.seed(seeds[0])
    numpy.random.seed(seeds[1])
    runner, loader = built(by_epoch, stop, 5 if checkpoint is None else None)
    torch.manual_seed(seeds[0])
    if checkpoint is not None:
        runner.resume(checkpoint)
    runner.run([loader, loader], [("train", 2), ("val", 1)])
    runner.close()
    tree = {
        "model": runner.model.state_dict(),
        "optimizer": runner.optimizer.state_dict(),
        "hooks": runner.table.state_dict(),
        "counters": (runner.epoch, runner.iter),
        "python": random.getstate(),
        "numpy": numpy.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    return frozen(tree), runner


def frozen(tree):
    encoded = encode_tree(tree)
    tensors = {name: t.numpy().tobytes() for name, t in encoded.tensors.items()}
    return repr(encoded.tree), tuple(sorted(tensors.items()))


def paths(tree, above=()):
    """The way to every field, groups of them before those inside."""
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def without(parts, path):
    parts = copy.deepcopy(parts)
    owner = parts
    for key in path[:-1]:
        owner = owner[key]
    del owner[path[-1]]
    return parts


NOT_STATE = {
    # said of the run, not needed to go on with it
    ("trainer", "meta"),
    # how long an epoch was, to notice another batch size
    ("trainer", "position", "loaders"),
    # empty on the CPU; what the others have in it, devrun.testing takes away
    ("adapter",),
    # a counter that no layer with a fixed momentum reads
    ("hooks", "EMAHook", "model", "1.num_batches_tracked"),
}
BY_ITERATION = {("trainer", "position", "done")}
"""The iteration runner's place in an epoch is its loader's."""


def is_state(path, by_epoch):
    known = NOT_STATE if by_epoch else NOT_STATE | BY_ITERATION
    return not any(path[: len(other)] == other for other in known)


@pytest.mark.parametrize(
    ("by_epoch", "every"),
    [(True, 6), *(pytest.param(e, 1, marks=pytest.mark.faults) for e in (True, False))],
)
def test_every_field_is_missed(by_epoch, every, tmp_path, figures):
    expected, _ = finished(by_epoch)
    _, runner = finished(by_epoch, stop=CUT)
    whole = read_checkpoint(runner.save_checkpoint(tmp_path / "whole"))
    # other streams than those of the run that was cut: what comes back, was saved
    assert finished(by_epoch, whole.path, seeds=(1, 1))[0] == expected
    fields = [p for p in paths(whole.parts) if is_state(p, by_epoch)][::every]
    unnoticed = []
    for path in fields:
        root = tmp_path / "mutant"
        about = {"step": whole.step, "run_id": whole.manifest.run_id}
        mutant = write_checkpoint(root, "mutant", without(whole.parts, path), about)
        try:
            same = finished(by_epoch, mutant, seeds=(1, 1))[0] == expected
        except (DevrunError, LookupError, TypeError, AttributeError):
            same = False
        if same:
            unnoticed.append(path)
        shutil.rmtree(root)
    assert not unnoticed, unnoticed
    figures("F15", f"{len(fields)} of {len(fields)} dropped fields were noticed")


@pytest.mark.faults
def test_a_dropped_field_is_refused_in_one_line(tmp_path):
    """What a hook or the loop cannot do without is a CheckpointError, no KeyError."""
    _, runner = finished(True, stop=CUT)
    whole = read_checkpoint(runner.save_checkpoint(tmp_path / "whole"))
    wrong = []
    for path in paths(whole.parts):
        about = {"step": whole.step, "run_id": whole.manifest.run_id}
        parts = without(whole.parts, path)
        mutant = write_checkpoint(tmp_path / "m", "mutant", parts, about)
        try:
            finished(True, mutant)
        except DevrunError as error:
            assert str(error).isprintable()
        except Exception as error:  # noqa: BLE001 - all of them are listed
            wrong.append((path, repr(error)))
        shutil.rmtree(tmp_path / "m")
    assert not wrong, wrong
