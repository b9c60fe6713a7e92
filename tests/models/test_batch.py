"""How many samples a batch holds, and its way to a device."""

from __future__ import annotations

import dataclasses
from collections import UserDict, namedtuple

import pytest
import torch

from devrun.data.batch import batch_size_of, to_device
from devrun.step import MicroBatches

X = torch.zeros(4, 3)
Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass(frozen=True)
class Sample:
    name: str
    image: torch.Tensor


@dataclasses.dataclass
class Slotted:
    __slots__ = ("image",)
    image: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (X, 4),
        ((X, torch.zeros(7)), 4),
        ([torch.tensor(1.0), X], 4),
        ({"id": "a", "deep": {"list": [(X,)]}}, 4),
        (UserDict(x=X), 4),
        (Point(3, X), 4),
        (Sample("a", X), 4),
        (Slotted(X), 4),
        (torch.zeros(0, 3), 0),
        (torch.tensor(2.0), 1),
        ({"text": "abcd"}, 1),
        (None, 1),
        (MicroBatches([(X, X), (X[:1], X[:1])]), 5),
    ],
)
def test_the_first_tensor_with_a_dimension_says_the_size(batch, size):
    assert batch_size_of(batch) == size


def test_a_tensor_already_there_is_not_copied():
    assert to_device((X, X), torch.device("cpu"), non_blocking=True)[0] is X


@pytest.mark.cuda
def test_pinned_tensors_arrive_whole_on_a_cuda_device():
    batch = {"x": torch.arange(1000.0).pin_memory(), "y": torch.arange(10)}
    moved = to_device(batch, "cuda", non_blocking=True)
    assert moved["x"].is_cuda
    assert torch.equal(moved["x"].cpu(), batch["x"])
    back = to_device(moved, "cpu", non_blocking=True)
    assert torch.equal(back["y"], batch["y"])
