"""Data sets read regular files alone: a pipe or a device has no end."""

import gzip
import os
import signal

import pytest

from devrun.data import build_dataset
from devrun.data.datasets.images import read_idx
from devrun.errors import DataError

LIMIT = 20  # seconds; none is needed


@pytest.fixture(autouse=True)
def _ends():
    """A reader that waits for ever fails the test that started it."""

    def end(*_):
        raise TimeoutError("it reads without end")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["pipe", "device"])
def endless(request, tmp_path):
    path = tmp_path / "endless.csv"
    if request.param == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize(
    "cfg",
    [
        {"type": "TextCorpus", "files": "PATH"},
        {"type": "TextParagraphs", "files": "PATH"},
        {"type": "IDXDataset", "images": "PATH", "labels": "PATH"},
        {"type": "ImageFolder", "data_prefix": ".", "ann_file": "PATH"},
        {"type": "HuggingFaceDataset", "path": "PATH"},
        {"type": "HuggingFaceDataset", "path": "FOLDER"},
        {"type": "CIFAR10", "data_prefix": "FOLDER"},
        {"type": "MNIST", "data_prefix": "FOLDER"},
    ],
    ids=lambda cfg: "-".join(map(str, list(cfg.values())[:2])),
)
def test_a_file_without_an_end_is_refused_in_one_line(endless, cfg):
    if cfg["type"] == "HuggingFaceDataset":
        pytest.importorskip("datasets")
    names = ("data_batch_1.bin", "train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    for name in names:
        (endless.parent / name).symlink_to(endless)

    def filled(value):
        return value.replace("PATH", str(endless)).replace(
            "FOLDER", str(endless.parent)
        )

    with pytest.raises(DataError) as caught:
        build_dataset({key: filled(value) for key, value in cfg.items()})
    assert str(endless.parent) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_packed_file_that_unpacks_to_far_more_is_refused(tmp_path):
    path = tmp_path / "images.gz"
    claimed = bytes([0, 0, 8, 1]) + (1 << 28).to_bytes(4, "big")
    path.write_bytes(gzip.compress(claimed + bytes((1 << 26) + 8), 9))
    with pytest.raises(DataError, match="unpacks to more than 67108864 bytes"):
        read_idx(path, 1)


def test_folders_that_lead_in_circles_end(folder):
    for name in ("a", "b"):
        (folder / "cat" / name).symlink_to(folder / "cat", target_is_directory=True)
    dataset = build_dataset({"type": "ImageFolder", "data_prefix": str(folder)})
    assert len(dataset) == 10
