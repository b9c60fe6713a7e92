"""Out of memory: smaller micro-batches, the same update."""

import dataclasses
from collections import namedtuple

import pytest
import torch
from torch import nn

from devrun.devices.splitting import split
from devrun.errors import ConfigError, DeviceMemoryError, UnsupportedFeatureError
from devrun.hooks import OptimizerHook
from tests.support.noisy import loader, runner, weights
from tests.support.observe import Losses


class Memory(nn.Module):
    """A net with dropout and room for `room` samples at a time."""

    def __init__(self, room, kind=torch.cuda.OutOfMemoryError):
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
    kind = policy.pop("kind", torch.cuda.OutOfMemoryError)
    model = Memory(room, kind)
    run = runner(False, limit, model=model, optimizer_config=policy, work_dir=tmp_path)
    if tmp_path is not None:
        run.register_checkpoint_hook({"interval": 2, "by_epoch": False})
        run.resume("auto")
    losses = Losses()
    run.register_hook(losses)
    run.run([loader(batch_size=8)])
    return run, losses.values


@pytest.mark.parametrize("kind", [torch.cuda.OutOfMemoryError, MemoryError])
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


def test_a_size_may_be_given():
    run, _ = trained(99, micro_batch=5)
    assert set(run.model.sizes) == {5, 3}


def test_single_samples_that_do_not_fit_are_status_6():
    with pytest.raises(DeviceMemoryError, match="micro-batches of 1 samples") as caught:
        trained(0, micro_batch="auto")
    assert caught.value.exit_code == 6
    with pytest.raises(DeviceMemoryError, match="with 8 samples an update"):
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
