"""Out of memory: smaller micro-batches, the same update."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections import namedtuple
from time import process_time

import pytest
import torch
from torch import nn

from devrun.devices.splitting import split
from devrun.errors import ConfigError, DeviceMemoryError, UnsupportedFeatureError
from devrun.hooks import OptimizerHook
from tests.support.noisy import loader, runner, same, weights
from tests.support.observe import Lines, Losses


class Memory(nn.Module):
    """A net with dropout and room for `room` samples at a time."""

    def __init__(self, room, kind=torch.OutOfMemoryError):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.room, self.kind, self.sizes = room, kind, []
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.sizes.append(len(x))
            self.calls += 1
            torch.rand(1)  # part of what a second attempt has to draw again
            if len(x) > self.room:
                raise self.kind("out of memory: tried to allocate 2 GiB")
        return self.net(x)


def trained(room, tmp_path=None, limit=6, **policy):
    kind = policy.pop("kind", torch.OutOfMemoryError)
    model = Memory(room, kind)
    run = runner(False, limit, model=model, optimizer_config=policy, work_dir=tmp_path)
    if tmp_path is not None:
        run.register_checkpoint_hook({"interval": 2, "by_epoch": False})
        run.resume("auto")
    losses = Losses()
    run.register_hook(losses)
    run.run([loader(batch_size=8)])
    return run, losses.values


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, MemoryError])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_update_is_that_of_the_whole_batch(kind, accumulate):
    policy = {"cumulative_iters": accumulate, "grad_clip": {"max_norm": 1.0}}
    whole, expected = trained(99, **policy)
    run, losses = trained(3, micro_batch="auto", kind=kind, **policy)
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, value in weights(whole).items():
        if name != "calls":
            assert torch.allclose(weights(run)[name], value, rtol=1e-5, atol=1e-6)
    sizes = run.model.sizes
    assert sizes[:2] == [8, 4] and max(sizes[2:]) == 2  # 8, then 4, then 2: found once
    assert run.model.calls == sum(size <= 2 for size in sizes)  # attempts left nothing


def test_the_size_is_remembered(tmp_path):
    trained(3, tmp_path, 2, micro_batch="auto")
    run, _ = trained(3, tmp_path, 4, micro_batch="auto")
    assert set(run.model.sizes) == {2}


class Busy(nn.Module):
    """A forward pass of that many milliseconds of the processor, by its samples."""

    def __init__(self, cost, room=99, norm=False):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Linear(4, 2)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
        self.cost, self.room, self.sizes = cost, room, []

    def forward(self, x):
        if self.training:
            self.sizes.append(len(x))
            if len(x) > self.room:
                raise MemoryError
            end = process_time() + self.cost.get(len(x), 0) / 1e3
            while process_time() < end:
                pass
        return self.net(self.norm(x))


def busy(model, limit, tmp_path=None, device="cpu", **data):
    run = runner(
        False,
        limit,
        model=model,
        optimizer_config={"micro_batch": "auto"},
        work_dir=tmp_path,
        device=device,
    )
    if tmp_path is not None:
        run.register_checkpoint_hook({"interval": 10, "by_epoch": False})
        run.resume("auto")
    with Lines() as lines:
        run.run([loader(batch_size=8, **data)])
    return run, lines


FOUR = {8: 9, 4: 2, 2: 4, 1: 1}
"""Milliseconds that make micro-batches of four samples the fastest."""


def test_the_fastest_size_is_found_and_a_resumed_run_keeps_it(tmp_path):
    """Whole batches, then their halves: until a half is no faster."""
    whole, lines = busy(Busy(FOUR), 60, tmp_path)
    (line,) = lines.matching("micro_batch: auto keeps")
    assert "auto keeps 4;" in line
    assert re.search(
        r"of processor time, [\d.]+ ms with 8, .* with 4, .* with 2$", line
    )
    sizes = whole.model.sizes
    assert sizes[0] == 8 and min(sizes) == 2 and set(sizes[-20:]) == {4}
    newest = max((tmp_path / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)
    again, lines = busy(Busy(FOUR), 60, tmp_path)
    assert again.model.sizes == [4, 4] * 10  # of the last ten updates
    assert not lines.matching("micro_batch: auto keeps")
    assert same(weights(whole), weights(again))


def test_whole_batches_are_kept_where_halves_are_slower():
    run, lines = busy(Busy({8: 1, 4: 3}), 26)
    assert "auto keeps whole batches;" in lines.matching("micro_batch: auto keeps")[0]
    assert run.adapter.state_dict()["micro_batch"] == {"measured": True}
    assert run.model.sizes[-1] == 8 and set(run.model.sizes) == {8, 4}


def test_memory_that_runs_out_later_is_answered_as_before():
    class Later(Busy):
        def forward(self, x):
            if len(self.sizes) == 120:
                self.room = 2
            return super().forward(x)

    run, lines = busy(Later(FOUR), 70)
    assert "auto keeps 4;" in lines.matching("micro_batch: auto keeps")[0]
    assert lines.matching("out of memory with micro-batches of 4 samples: 2 from")
    assert run.model.sizes[-1] == 2
    run, lines = busy(Busy({4: 9, 2: 1, 1: 2}, room=4), 60)
    assert run.model.sizes.count(8) == 1
    assert "auto keeps 2;" in lines.matching("micro_batch: auto keeps")[0]


def test_nothing_is_timed_where_it_would_change_results_or_cannot_be():
    deterministic = {"type": "cpu", "deterministic": True}
    compiled = {"type": "cpu", "compile": {"backend": "eager"}}
    for model, device in (
        (Busy(FOUR), deterministic),
        (Busy(FOUR, norm=True), "cpu"),
        (nn.Linear(4, 2), compiled),
    ):
        run, lines = busy(model, 30, device=device)
        assert set(getattr(model, "sizes", {8})) == {8}
        assert not lines.matching("micro_batch: auto keeps")
        assert run.adapter.state_dict()["micro_batch"] == {}
    run, lines = busy(Busy(FOUR), 60, length=12)  # updates of 8 and of 4 in turn
    assert "batches of different sizes are not" in lines.text
    assert run.model.sizes[-2:] == [8, 4]


def test_a_size_may_be_given():
    run, _ = trained(99, micro_batch=5)
    assert set(run.model.sizes) == {5, 3}


def test_single_samples_that_do_not_fit_are_status_6():
    with pytest.raises(DeviceMemoryError, match="micro-batches of 1 samples") as caught:
        trained(0, micro_batch="auto")
    assert caught.value.exit_code == 6
    with pytest.raises(DeviceMemoryError, match="micro_batch: auto"):
        trained(3, micro_batch=4)


def test_other_failures_are_not_taken_for_it():
    with pytest.raises(RuntimeError, match="something else"):

        class Broken(Memory):
            def forward(self, x):
                raise RuntimeError("something else")

        run = runner(
            False, 1, model=Broken(9), optimizer_config={"micro_batch": "auto"}
        )
        run.run([loader()])


def test_who_updates_by_himself_is_told():
    class Own(OptimizerHook):
        def after_train_iter(self, runner):
            pass

    run = runner(optimizer_config=Own(micro_batch="auto"))
    with pytest.raises(UnsupportedFeatureError, match="remove micro_batch"):
        run.run([loader()])
    with pytest.raises(ConfigError, match="micro_batch must be an int"):
        OptimizerHook(micro_batch="aut")


Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass(frozen=True)
class Record:
    images: torch.Tensor
    names: list


def test_batches_of_all_kinds_are_divided():
    x, y = torch.arange(5.0), torch.arange(10).reshape(5, 2)
    names = list("abcde")
    for batch, read in [
        ((x, y), lambda piece: piece),
        ([x, y], lambda piece: piece),
        ({"x": x, "y": y, "scale": torch.tensor(2.0)}, lambda p: (p["x"], p["y"])),
        (Pair(x, y), lambda piece: (piece.a, piece.b)),
    ]:
        pieces = split(batch, 2)
        assert all(type(piece) is type(batch) for piece in pieces)
        assert [len(read(piece)[0]) for piece in pieces] == [2, 2, 1]
        assert torch.equal(torch.cat([read(piece)[0] for piece in pieces]), x)
        assert torch.equal(torch.cat([read(piece)[1] for piece in pieces]), y)
    pieces = split(Record(y, names), 3)
    assert [piece.names for piece in pieces] == [["a", "b", "c"], ["d", "e"]]
    assert split((x, y), 5) == [(x, y)]
    assert split((x, y), None) == [(x, y)]
