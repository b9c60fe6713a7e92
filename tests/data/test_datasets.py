"""Data sets in the published formats, on small files made here."""

import gzip
import struct

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from devrun.data import (
    CIFAR10,
    MNIST,
    DigitsDataset,
    IDXDataset,
    SyntheticClassification,
    TextCorpus,
    TextParagraphs,
    build_dataset,
)
from devrun.data.facts import check_labels
from devrun.errors import ConfigError, DataError
from tests.data.helpers import prepared, read

RNG = np.random.default_rng(0)


def write_idx(path, array):
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(head + array.tobytes())
    return path


@pytest.fixture
def mnist(tmp_path):
    for part, count in (("train", 12), ("t10k", 5)):
        images = RNG.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", images)
        labels = (np.arange(count) % 10).astype(np.uint8)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", labels)
    return tmp_path


class TestIDX:
    def test_images_and_labels_are_read(self, mnist):
        dataset = MNIST(mnist)
        image, label = dataset[3]
        raw = (mnist / "train-images-idx3-ubyte").read_bytes()[16:]
        expected = np.frombuffer(raw, np.uint8).reshape(12, 28, 28)[3]
        assert (len(dataset), label, dataset.num_classes) == (12, 3, 10)
        assert torch.equal(image[0], torch.tensor(expected) / 255)
        assert len(MNIST(mnist, test_mode=True)) == 5

    def test_packed_files_are_read_as_they_are(self, mnist):
        plain = MNIST(mnist)
        for file in list(mnist.iterdir()):
            file.with_name(f"{file.name}.gz").write_bytes(
                gzip.compress(file.read_bytes())
            )
            file.unlink()
        assert torch.equal(MNIST(mnist).images, plain.images)

    def test_missing_files_are_listed(self, tmp_path):
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte, .*\.gz"):
            MNIST(tmp_path)
        with pytest.raises(DataError, match="no such folder"):
            MNIST(tmp_path / "nowhere")

    @pytest.mark.parametrize(
        ("content", "told"),
        [
            (b"", "not an IDX file"),
            (b"\x00\x00\x07\x01", "it begins with 0x00000701, not 0x0000"),
            (b"\x00\x00\x08\x01\x00", "begins with 0x0000080100, not"),
            (b"\x00\x00\x08\x01\x00\x00\x00\x09abc", "9 bytes; the file has 3"),
            (b"\x00\x00\x08\x01\x00\x00\x00\x01abc", "1 bytes; the file has 3"),
            (b"\x00\x00\x08\x01" + b"\xff" * 4, "the file has 0"),
            (gzip.compress(b"\x00\x00\x08\x01" + b"\0" * 99, mtime=0)[:-9], "damaged"),
        ],
    )
    def test_a_damaged_file_is_named(self, mnist, content, told):
        path = mnist / "train-labels-idx1-ubyte"
        path.write_bytes(content)
        with pytest.raises(DataError, match=told) as caught:
            MNIST(mnist)
        assert str(path) in str(caught.value)

    def test_images_in_place_of_labels_are_refused(self, mnist):
        images = mnist / "train-images-idx3-ubyte"
        with pytest.raises(DataError, match="not an IDX file of bytes in 1 dim"):
            IDXDataset(images, images)


PARTS = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


@pytest.fixture
def cifar(tmp_path):
    """Four images per file."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for part in PARTS:
        records = RNG.integers(0, 256, (4, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / f"{part}.bin").write_bytes(records.tobytes())
    return tmp_path


class TestCIFAR10:
    def test_a_record_is_a_label_and_three_planes(self, cifar):
        raw = (cifar / "cifar-10-batches-bin" / "data_batch_1.bin").read_bytes()
        dataset = CIFAR10(cifar)
        image, label = dataset[1]
        assert dataset.images.shape == (20, 3, 32, 32)
        assert label == raw[3073]
        assert round(image[2, 31, 31].item() * 255) == raw[2 * 3073 - 1]
        assert len(CIFAR10(cifar / "cifar-10-batches-bin", test_mode=True)) == 4

    def test_a_truncated_or_missing_file_is_named(self, cifar):
        path = cifar / "cifar-10-batches-bin" / "data_batch_2.bin"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(DataError, match=r"data_batch_2\.bin: 12291 bytes"):
            CIFAR10(cifar)
        path.unlink()
        with pytest.raises(DataError, match=r"complete: .*_2\.bin; unpack"):
            CIFAR10(cifar)


class TestDigits:
    def test_the_split_is_stratified_and_complete(self):
        train, val = DigitsDataset("train"), DigitsDataset("val")
        everything = DigitsDataset("all")
        assert len(train) + len(val) == len(everything) == 1797
        share = val.targets.bincount() / everything.targets.bincount()
        assert ((share - 0.2).abs() < 0.01).all()
        assert torch.equal(
            torch.cat([train.images, val.images]).to(torch.int64).sum(),
            everything.images.to(torch.int64).sum(),
        )


class TestTextCorpus:
    def test_blocks_are_the_bytes_in_the_order_of_names(self, tmp_path):
        (tmp_path / "b.txt").write_bytes(b"second")
        (tmp_path / "a.txt").write_bytes(b"first")
        dataset = TextCorpus(str(tmp_path), split="all", block_size=4)
        text = b"".join(bytes(dataset[i]["input_ids"].tolist()) for i in range(3))
        assert text == b"first\0second"
        assert torch.equal(dataset[1]["labels"], dataset[1]["input_ids"])

    def test_a_file_is_either_trained_or_validated_on(self, tmp_path):
        for number in range(40):
            (tmp_path / f"{number}.txt").write_bytes(bytes([number + 1]) * 7 + b"")
        seen = [
            set(TextCorpus(str(tmp_path), split, 0.3, 8).tokens.tolist()) - {0}
            for split in ("train", "val")
        ]
        assert seen[0].isdisjoint(seen[1])
        assert seen[0] | seen[1] == set(range(1, 41))

    def test_a_single_file_is_cut_in_two(self, tmp_path):
        file = tmp_path / "book"
        file.write_bytes(bytes(range(100)))
        train = TextCorpus(str(file), "train", 0.2, 10).tokens
        val = TextCorpus(file, "val", 0.2, 10).tokens
        assert (train.tolist(), val.tolist()) == (
            list(range(80)),
            list(range(80, 100)),
        )


class TestTextParagraphs:
    def test_a_sample_is_a_paragraph_or_its_beginning(self, tmp_path):
        (tmp_path / "a.txt").write_bytes(b"one\ntwo\n\n\nx\n\n.\n")
        (tmp_path / "b.txt").write_bytes(b"\n?\n\nlast one")
        dataset = TextParagraphs(str(tmp_path), split="all", block_size=6)
        text = [bytes(sample["input_ids"].tolist()) for sample in dataset]  # type: ignore[attr-defined]
        assert text == [b"one\ntw", b"x\n", b".\n", b"?\n", b"last o"]
        assert dataset.lengths.tolist() == [len(part) for part in text]
        assert torch.equal(dataset[0]["labels"], dataset[0]["input_ids"])
        assert len(TextParagraphs(str(tmp_path), "all", max_bytes=4)) == 1


class TestSynthetic:
    def test_the_classes_can_be_told_apart(self):
        dataset = SyntheticClassification(64, (32,), 4, offset=1000)
        samples = torch.stack([x for x, _ in (dataset[i] for i in range(64))])
        patterns = torch.stack([dataset.pattern(label) for label in range(4)])
        nearest = torch.cdist(samples, patterns).argmin(1)
        assert torch.equal(nearest, dataset.targets)


class Drawn(Dataset[Tensor]):
    def __init__(self):
        self.samples = torch.randn(8)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


class Grown(Drawn):
    built = 1

    def __init__(self):
        Grown.built += 1
        self.samples = torch.zeros(Grown.built)


class TestWrappers:
    CFG = {"type": "SyntheticClassification", "num_samples": 4, "num_classes": 3}

    def test_repeat_goes_round(self):
        dataset = build_dataset(
            {"type": "RepeatDataset", "times": 3, "dataset": self.CFG}
        )
        assert len(dataset) == 12
        assert torch.equal(dataset[5][0], dataset[1][0])
        assert dataset.targets.tolist() == [0, 1, 2, 0] * 3
        assert dataset.num_classes == 3

    @pytest.mark.parametrize("workers", [0, 2])
    def test_it_is_built_again_also_in_a_resumed_run(self, workers):
        def loader():
            inner = {"type": f"{__name__}.Drawn"}
            made = {"type": "ReloadedDataset", "interval": 2, "dataset": inner}
            return prepared(build_dataset(made), num_workers=workers)

        whole = loader()
        epochs = [torch.cat(read(whole, epoch)).tolist() for epoch in range(4)]
        assert epochs[0] == epochs[1] != epochs[2] == epochs[3]
        assert torch.cat(read(loader(), 3, 1)).tolist() == epochs[3][4:]

    def test_one_of_another_length_is_refused(self):
        grown = {"type": "ReloadedDataset", "dataset": {"type": f"{__name__}.Grown"}}
        with pytest.raises(DataError, match=r"epoch 2, Grown has 3 samples instead of"):
            build_dataset(grown).set_epoch(1)

    def test_a_list_is_one_after_the_other(self):
        other = {**self.CFG, "seed": 1, "num_samples": 2}
        dataset = build_dataset([self.CFG, other])
        assert len(dataset) == 6
        assert torch.equal(dataset[4][0], build_dataset(other)[0][0])
        assert dataset.targets.tolist() == [0, 1, 2, 0, 0, 1]


class TestLabels:
    def test_the_first_label_out_of_range_is_named(self):
        dataset = SyntheticClassification(8, num_classes=4)
        check_labels(dataset, 4)
        with pytest.raises(
            ConfigError,
            match=r"sample 2 of SyntheticClassification has the label 2, but the "
            r"model has 2 classes \(0 to 1\); 4 of 8",
        ):
            check_labels(dataset, 2)
