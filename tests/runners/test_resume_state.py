"""What else has to come back for a resumed run to be the same: places and states."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

from devrun.checkpoint import find_latest, read_checkpoint, write_checkpoint
from devrun.errors import CheckpointError, ConfigError
from devrun.hooks import ClosureHook, EMAHook, Hook
from tests import failpoints
from tests.runners.test_resume import StopAt
from tests.support.noisy import Augmented, loader, loss, runner, same, weights

TRAIN_VAL = [("train", 2), ("val", 1)]


class Trail(Hook):
    """Every iteration: its phase, loss, rates and counters."""

    priority = "LOWEST"

    def __init__(self):
        self.seen = []

    def note(self, stage, runner):
        self.seen.append(
            (
                stage,
                runner.outputs["loss"].item() if runner.outputs["loss"] else None,
                *runner.current_lr(),
                runner.inner_iter,
                runner.epoch,
            )
        )

    def after_train_iter(self, runner):
        self.note("train", runner)

    def after_val_iter(self, runner):
        self.note("val", runner)

    def after_train_epoch(self, runner):
        self.seen.append(("end", runner.inner_iter, runner.epoch))


def trained(work_dir, by_epoch, limit, *, stop=None, interval=-1, **options):
    """A run from the newest checkpoint in `work_dir`, which is saved at its end."""
    flow = options.pop("flow", [("train", 1)])
    loaders = options.pop("loaders", None) or [loader() for _ in flow]
    hooks = options.pop("hooks", ())
    lr_config = options.pop("lr_config", None)
    allow_changes = options.pop("allow_changes", False)
    run = runner(by_epoch, limit, work_dir=work_dir, **options)
    run.register_lr_hook(lr_config)
    run.register_checkpoint_hook({"interval": interval, "by_epoch": by_epoch})
    trail = Trail()
    for hook in (*hooks, trail, *([StopAt(stop)] if stop else ())):
        run.register_hook(hook)
    run.resume("auto", allow_changes=allow_changes)
    run.run(loaders, flow)
    return run, trail.seen


def assert_exact(folder, by_epoch, limit, stop, make=dict, **options):
    """`make()` gives the options that a run must not share with another."""
    whole, expected = trained(folder / "whole", by_epoch, limit, **make(), **options)
    cut = folder / "cut"
    _, first = trained(cut, by_epoch, limit, stop=stop, **make(), **options)
    resumed, second = trained(cut, by_epoch, limit, **make(), **options)
    assert first + second == expected
    assert same(weights(resumed), weights(whole))


@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize(
    ("interval", "stop"), [(1, 5), *((-1, stop) for stop in (1, 2, 5, 6, 9))]
)
def test_the_place_in_the_workflow_and_its_counters(tmp_path, by_epoch, interval, stop):
    limit = 4 if by_epoch else 18
    assert_exact(tmp_path, by_epoch, limit, stop, flow=TRAIN_VAL, interval=interval)


@pytest.mark.parametrize("by_epoch", [True, False])
def test_a_last_save_that_failed_is_made_up_for(tmp_path, monkeypatch, by_epoch):
    """What is saved when all is over is what should have been saved before."""
    trained(tmp_path / "whole", by_epoch, 2)
    failpoints.arm("reserve:1:ENOSPC", monkeypatch.setattr)
    trained(tmp_path / "failed", by_epoch, 2)
    monkeypatch.undo()
    expected, found = (
        read_checkpoint(find_latest(tmp_path / name / "checkpoints"))
        for name in ("whole", "failed")
    )
    assert found["trainer"]["position"] == expected["trainer"]["position"]
    assert str(found["rng-rank00000"]) == str(expected["rng-rank00000"])
    longer = [trained(tmp_path / name, by_epoch, 4)[1] for name in ("whole", "failed")]
    assert longer[0] == longer[1]


class Noisy(nn.Module):
    """Draws from torch's stream when it is validated too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.line = nn.Linear(4, 2)

    def train_step(self, batch, optimizer):
        inputs, labels = batch
        value = loss(self.line(inputs + torch.rand_like(inputs)), labels)
        return {"loss": value, "log_vars": {}, "num_samples": len(inputs)}

    val_step = train_step


@pytest.mark.parametrize(("by_epoch", "stop"), [(True, 6), (False, 2), (False, 3)])
def test_a_val_phase_draws_what_it_would_have_drawn(tmp_path, by_epoch, stop):
    def fresh():
        return {"model": Noisy(), "loss": None}

    flow, limit = [("train", 1), ("val", 1)], 3 if by_epoch else 8
    assert_exact(tmp_path, by_epoch, limit, stop, fresh, flow=flow, interval=1)


@pytest.mark.parametrize(("by_epoch", "stop"), [(True, 8), (False, 6)])
def test_a_sampler_with_a_generator_of_its_own(tmp_path, by_epoch, stop):
    def fresh():
        own = torch.Generator().manual_seed(3)
        sampler = WeightedRandomSampler([1.0] * 24, 24, generator=own)
        return {"loaders": [DataLoader(Augmented(), batch_size=4, sampler=sampler)]}

    assert_exact(tmp_path, by_epoch, 3 if by_epoch else 14, stop, fresh)


class OwnLoader(DataLoader):
    """One that devrun does not replace: it is read and dropped up to the position."""


class Fixed(Augmented):
    def __getitem__(self, index):
        return self.inputs[index], self.inputs[index].sum() > 0


@pytest.mark.parametrize("by_epoch", [True, False])
def test_a_loader_that_is_read_up_to_its_place(tmp_path, by_epoch):
    def fresh():
        return {"loaders": [OwnLoader(Fixed(), batch_size=4)]}

    assert_exact(tmp_path, by_epoch, 2 if by_epoch else 12, 4, fresh)


@pytest.mark.parametrize(("by_epoch", "stop"), [(True, 7), (False, 7)])
def test_a_hook_may_resume_the_run_when_it_starts(tmp_path, by_epoch, stop):
    limit = 4 if by_epoch else 18
    place = {"flow": TRAIN_VAL}
    whole, expected = trained(tmp_path / "whole", by_epoch, limit, **place)
    _, first = trained(tmp_path / "cut", by_epoch, limit, stop=stop, **place)
    newest = find_latest(tmp_path / "cut" / "checkpoints")
    hooks = [EMAHook(resume_from=str(newest))]
    resumed, second = trained(tmp_path / "new", by_epoch, limit, hooks=hooks, **place)

    def phases(seen):  # the averaged weights are validated: with losses of their own
        return [entry if entry[0] != "val" else entry[3:] for entry in seen]

    assert phases(first + second) == phases(expected)
    assert same(weights(resumed), weights(whole))


@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize(
    "stage", ["before_epoch", "before_train_iter", "after_train_iter", "after_epoch"]
)
def test_a_run_in_its_loop_takes_up_no_other(tmp_path, by_epoch, stage):
    trained(tmp_path / "first", by_epoch, 1)
    saved = str(find_latest(tmp_path / "first" / "checkpoints"))
    hooks = [ClosureHook(stage, lambda runner: runner.resume(saved))]
    with pytest.raises(ConfigError, match="call it before run") as caught:
        trained(tmp_path / "second", by_epoch, 2, hooks=hooks)
    assert "\n" not in str(caught.value)
    run, _ = trained(tmp_path / "third", by_epoch, 2)
    run.resume(saved)  # its loop is over
    assert run.epoch == by_epoch


def test_another_batch_size_goes_on_at_the_same_sample(tmp_path):
    flow = [("train", 1), ("val", 1)]

    def sized(size):
        return {"loaders": [loader(batch_size=size) for _ in flow], "flow": flow}

    trained(tmp_path, True, 2, stop=2, **sized(4))
    with pytest.raises(CheckpointError, match="samples an update.*4 -> 2"):
        trained(tmp_path, True, 2, **sized(2))
    run, seen = trained(tmp_path, True, 2, allow_changes=True, **sized(2))
    inner, epoch = seen[0][3:]
    assert (inner, epoch) == (4, 0)  # 8 samples were read: 4 updates of 2
    assert run.iter == run.max_iters == 24


def everything(run):
    """What a failed resume must leave as it was."""
    return (
        weights(run),
        run.optimizer.state_dict()["param_groups"],
        (run.epoch, run.iter, run.seed, run.checkpointer.run_id, dict(run.meta)),
        torch.get_rng_state().tolist(),
    )


def damaged(part, change):
    """The saved run with one part spoilt, and its hash made right again."""

    def spoil(folder):
        found = read_checkpoint(find_latest(folder / "checkpoints"))
        parts = dict(found.parts)
        parts[part] = change(parts[part])
        return write_checkpoint(folder, "spoilt", parts, {"step": found.step})

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        damaged("optimizer", lambda tree: {**tree, "groups": []}),
        damaged("optimizer", lambda tree: {"nonsense": 1}),
        damaged("trainer", lambda tree: {**tree, "position": {"epoch": "two"}}),
        damaged("trainer", lambda tree: {"meta": {}}),
        damaged("rng-rank00000", lambda tree: {**tree, "host": {"torch": "AAAA"}}),
        damaged("model", lambda tree: {k: v for k, v in tree.items() if k != "0.bias"}),
        damaged("model", lambda tree: {**tree, "0.bias": torch.zeros(5)}),
    ],
)
def test_a_resume_that_fails_changes_nothing(tmp_path, spoil):
    trained(tmp_path, True, 1)
    path = spoil(tmp_path)
    run = runner(True, 2)
    before = everything(run)
    with pytest.raises(CheckpointError):
        run.resume(path)
    after = everything(run)
    assert same(before[0], after[0])
    assert before[1:] == after[1:]


def test_the_other_kind_of_runner_says_so(tmp_path, capsys):
    run, _ = trained(tmp_path, True, 1)
    again = runner(False, 9, work_dir=tmp_path)
    again.resume("auto")
    assert again.iter == run.iter == 6
    assert "counts epochs, resumed by one that counts iter" in capsys.readouterr().err


def test_what_makes_it_inexact_is_said(tmp_path, capsys):
    trained(tmp_path, True, 1)
    found = read_checkpoint(find_latest(tmp_path / "checkpoints"))
    more = {**found.parts, "rng-rank00001": found["rng-rank00000"]}
    write_checkpoint(tmp_path, "two", more, {"step": 6, "device": "abacus"})
    runner(True, 2).resume(tmp_path / "two")
    said = capsys.readouterr().err
    assert "not bit for bit: device: 'abacus' -> 'cpu', processes: 2 -> 1" in said


def test_a_save_before_the_loop_keeps_what_waits_for_it(tmp_path):
    """The place in the data and the adapter's state are those of the checkpoint."""
    trained(tmp_path, True, 2, stop=3)
    again = runner(True, limit=2, work_dir=tmp_path)
    again.resume("auto")
    copy = read_checkpoint(again.save_checkpoint(name="copy"))
    first = find_latest(tmp_path / "checkpoints")
    kept = read_checkpoint(first).parts
    assert copy.parts["trainer"]["position"] == kept["trainer"]["position"]
    assert copy.parts["adapter"] == kept["adapter"] != {}


class MeanLoss(Hook):
    """Puts a tensor, a number and text into the checkpoint, as it is called."""

    def __init__(self):
        self.mean, self.taken = torch.zeros(2), {}

    def after_train_iter(self, runner):
        self.mean = 0.9 * self.mean + runner.outputs["loss"].detach()

    def before_save_checkpoint(self, runner, checkpoint):
        self.at = runner.iter
        checkpoint.update(mean_loss=self.mean, updates=self.at, remark="none")

    def after_load_checkpoint(self, runner, checkpoint):
        self.taken = {key: checkpoint[key] for key in ("mean_loss", "updates")}


@pytest.mark.parametrize("by_epoch", [True, False])
def test_what_a_hook_puts_into_a_checkpoint_comes_back_as_it_was(tmp_path, by_epoch):
    first, second = MeanLoss(), MeanLoss()
    trained(tmp_path, by_epoch, 1 if by_epoch else 6, hooks=[first])
    run, _ = trained(tmp_path, by_epoch, 2 if by_epoch else 12, hooks=[second])
    assert torch.equal(second.taken["mean_loss"], first.mean)
    assert second.taken["updates"] == first.at < run.iter
