"""The walk over batches and outputs: the same for every kind of container."""

import dataclasses
from collections import OrderedDict, UserDict
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from devrun import EpochBasedRunner
from devrun.tensors import (
    batch_size_of,
    map_tensors,
    named_tensors,
    tensors_in,
    to_device,
)
from tests.support.strict import zip_strict


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class FrozenRecord:
    x: Any
    y: Any


class Attributes:
    def __init__(self, x, y):
        self.x, self.y = x, y


KINDS = {
    "list": lambda x, y: [x, y],
    "tuple": lambda x, y: (x, y),
    "named tuple": Pair,
    "dict": lambda x, y: {"x": x, "y": y},
    "ordered dict": lambda x, y: OrderedDict(x=x, y=y),
    "mapping": lambda x, y: UserDict(x=x, y=y),
    "dataclass": Record,
    "frozen dataclass": FrozenRecord,
    "object": Attributes,
    "namespace": lambda x, y: SimpleNamespace(x=x, y=y),
    "nested": lambda x, y: {"deep": [Pair(x, None), Record("text", (y, 3))]},
}
kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
def test_every_tensor_is_found_and_replaced_in_a_container_of_its_type(kind):
    x, y = torch.ones(4, 2), torch.zeros(4)
    value = KINDS[kind](x, y)
    doubled = map_tensors(lambda tensor: tensor * 2, value)
    assert type(doubled) is type(value)
    assert [t.shape for t in tensors_in(doubled)] == [(4, 2), (4,)]
    assert all(
        torch.equal(a * 2, b) for a, b in zip_strict((x, y), tensors_in(doubled))
    )
    assert [t is o for t, o in zip_strict(tensors_in(value), (x, y))] == [
        True,
        True,
    ]


@kinds
def test_the_size_of_a_batch_is_that_of_its_first_tensor(kind):
    batch = KINDS[kind](torch.tensor(1.0), torch.zeros(5, 3))
    assert batch_size_of(batch) == 5


@kinds
def test_a_batch_moves_whole(kind):
    moved = to_device(KINDS[kind](torch.ones(2), torch.zeros(2)), "meta")
    assert {tensor.device.type for tensor in tensors_in(moved)} == {"meta"}


def test_what_moves_itself_is_left_to_do_it():
    class Own(Attributes):
        def to(self, device):
            return ("moved", device)

    assert to_device([Own(torch.ones(1), 2)], "cpu") == [("moved", "cpu")]


def test_paths_name_the_place():
    value = {"a": [torch.ones(1)], "b": Record(Pair(1, torch.ones(1)), None)}
    names = [name for name, _ in named_tensors(value, "batch")]
    assert names == ["batch['a'][0]", "batch['b'].x.y"]


def test_an_object_that_holds_itself_and_a_module_are_no_endless_walk():
    node = Attributes(torch.ones(1), None)
    node.y = node
    assert len(list(tensors_in([node, nn.Linear(2, 2)]))) == 1


@kinds
def test_an_output_of_any_kind_leaves_no_graph_behind(kind):
    """What a model returns beside its loss is detached, whatever holds it."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def train_step(self, batch, optimizer):
            out = self.layer(batch)
            loss = out.square().mean()
            extra = KINDS[kind](out, out.sum())
            return {"loss": loss, "log_vars": {}, "num_samples": 4, "extra": extra}

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runner = EpochBasedRunner(model, optimizer=optimizer, max_epochs=1, device="cpu")
    runner.run([DataLoader(torch.randn(4, 3), batch_size=4)], [("train", 1)])
    found = list(tensors_in(runner.outputs["extra"]))
    assert len(found) == 2
    assert not any(tensor.requires_grad for tensor in found)


@pytest.mark.cuda
def test_pinned_tensors_arrive_whole_on_a_cuda_device():
    batch = {"x": torch.arange(1000.0).pin_memory(), "y": torch.arange(10)}
    moved = to_device(batch, "cuda", non_blocking=True)
    assert moved["x"].is_cuda
    assert torch.equal(moved["x"].cpu(), batch["x"])
    back = to_device(moved, "cpu", non_blocking=True)
    assert torch.equal(back["y"], batch["y"])
