"""Labels, lengths, losses and last batches that training cannot use: one line each."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from devrun.registry import DATASETS, LOSSES, MODELS


class Labelled(Dataset):
    def __init__(self, kind="fine", count=16):
        self.kind, self.count = kind, count

    def __len__(self):
        if self.kind == "length":
            raise ValueError("the index is damaged")
        return self.count

    def __getitem__(self, index):
        label = {
            "float": float(index % 4),
            "text": "cat",
            "two": torch.tensor([index % 4, 1]),
            "one-hot": torch.eye(4, dtype=torch.long)[index % 4],
        }.get(self.kind, index % 4)
        return torch.ones(16) * index, label


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x):
        return self.layer(x)


class ComplexLoss(nn.Module):
    def forward(self, output, target):
        return torch.view_as_complex(output.reshape(-1, 2)).mean()


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(16, 4), nn.BatchNorm1d(4))


@pytest.fixture(autouse=True)
def registered():
    parts = [
        (DATASETS, Labelled),
        (MODELS, Complex),
        (MODELS, Normed),
        (LOSSES, ComplexLoss),
    ]
    for registry, part in parts:
        registry.register_module(module=part)
    yield
    for registry, part in parts:
        del registry.module_dict[part.__name__]


def data(kind="fine", **more):
    return {"samples_per_gpu": 8, "train": {"type": "Labelled", "kind": kind, **more}}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("float", "torch.float64 of shape [8]"),
        ("text", "a tuple of str, such as 'cat'"),
        ("two", "torch.int64 of shape [8, 2]"),
        ("one-hot", "torch.int64 of shape [8, 4]"),
    ],
)
def test_labels_that_the_loss_cannot_take_are_status_4(config, train, kind, said):
    status, _, err = train(config(data=data(kind)))
    assert status == 4
    last = err.splitlines()[-1]
    assert last.startswith("devrun: error: the labels of a batch are ")
    assert said in last
    assert "CrossEntropyLoss takes" in last
    assert "Traceback" not in err


def test_a_length_that_fails_is_status_4_with_its_place(config, train):
    path = config(data=data("length"))
    status, _, err = train(path)
    assert status == 4
    last = err.splitlines()[-1]
    assert "data.train: " in last
    assert path in last
    assert "the length of the data set Labelled failed: " in last
    assert " in __len__: ValueError: the index is damaged" in last


def test_a_complex_loss_is_status_2(config, train):
    model, loss = {"type": "Complex"}, {"type": "ComplexLoss"}
    status, _, err = train(config(model=model, loss=loss, data=data()))
    assert status == 2
    assert "the loss of Complex is complex (torch.complex64)" in err.splitlines()[-1]


def test_a_last_batch_of_one_under_batch_norm_is_status_2(config, train):
    cfg = {"model": {"type": "Normed"}, "evaluation": None}
    status, _, err = train(config(data=data(count=17), **cfg))
    assert status == 2
    assert "drop_last: true" in err.splitlines()[-1]
    dropped = {**data(count=17), "drop_last": True}
    assert train(config("again.yaml", data=dropped, **cfg))[0] == 0
