"""Missing or wrong data ends a command with status 4, whatever the data set."""

import gzip
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from devrun.registry import DATASETS


@DATASETS.register_module()
class ForeignImages(Dataset):
    """Fails as other packages' data sets do."""

    def __init__(self, root, how="open"):
        if how == "torchvision":
            raise RuntimeError("Dataset not found. You can use download=True")
        if how == "decode":
            b"\xff".decode()
        if how == "empty":
            return
        if how == "usage":
            raise ValueError("split must be one of a, b")
        Path(root).read_bytes()

    def __len__(self):
        return 0

    def __getitem__(self, index):
        return torch.zeros(16), 0


MISSING = [
    {"type": "CIFAR10", "data_prefix": "nowhere"},
    {"type": "CIFAR10", "data_prefix": "part"},
    {"type": "CIFAR10", "data_prefix": "cut"},
    {"type": "MNIST", "data_prefix": "nowhere"},
    {"type": "MNIST", "data_prefix": "cut"},
    {"type": "IDXDataset", "images": "nowhere", "labels": "nowhere"},
    {"type": "ImageFolder", "data_prefix": "nowhere"},
    {"type": "ImageFolder", "data_prefix": "empty"},
    {"type": "ImageFolder", "data_prefix": "empty", "classes": ["cat"]},
    {"type": "ImageFolder", "data_prefix": "empty", "ann_file": "nowhere"},
    {"type": "ImageFolder", "data_prefix": "empty", "ann_file": "binary"},
    {"type": "TextCorpus", "files": "nowhere", "block_size": 8},
    {"type": "TextCorpus", "files": "empty", "block_size": 8},
    {"type": "TextCorpus", "files": "short.txt", "block_size": 800},
    {"type": "TextParagraphs", "files": "nowhere", "block_size": 8},
    {"type": "TextParagraphs", "files": "blank.txt", "block_size": 8},
    {"type": "ForeignImages", "root": "nowhere"},
    {"type": "ForeignImages", "root": ".", "how": "torchvision"},
    {"type": "ForeignImages", "root": ".", "how": "decode"},
    {"type": "ForeignImages", "root": ".", "how": "empty"},
]


@pytest.fixture
def folders():
    for name in ("empty", "part", "cut"):
        Path(name).mkdir()
    Path("part/data_batch_1.bin").write_bytes(bytes(3073))
    Path("cut/data_batch_1.bin").write_bytes(bytes(100))
    for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"):
        Path("cut", name).write_bytes(gzip.compress(b"\0\0\x08\x03\0\0")[:-4])
    Path("short.txt").write_text("too short")
    Path("blank.txt").write_text("\n\n\n")
    Path("binary").write_bytes(b"\xff\xfe\n")


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize(
    "dataset",
    MISSING,
    ids=lambda d: (
        "-".join(d.values())
        if all(isinstance(v, str) for v in d.values())
        else d["type"]
    ),
)
def test_missing_or_wrong_data_is_status_4(train, config, folders, dataset, wrap):
    if wrap:
        dataset = {"type": "RepeatDataset", "times": 2, "dataset": dataset}
    data = {"samples_per_gpu": 8, "train": dataset}
    status, _, err = train(config(data=data), "--work-dir", "run")
    assert (status, err.count("\n")) == (4, 1), err
    assert err.startswith("devrun: error: ")


@pytest.mark.parametrize(
    "dataset",
    [
        {"type": "ForeignImages", "root": ".", "how": "usage"},
        {"type": "ForeignImages", "rot": "."},
        {"type": "CIFAR10"},
        {"type": "DigitsDataset", "split": "none"},
        {"type": "NoSuchData"},
    ],
)
def test_a_wrong_word_about_data_stays_status_2(train, config, dataset):
    data = {"samples_per_gpu": 8, "train": dataset}
    status, _, err = train(config(data=data), "--work-dir", "run")
    assert (status, err.count("\n")) == (2, 1), err
