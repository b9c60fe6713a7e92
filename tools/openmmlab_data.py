"""Made-up data in the layouts of MMClassification's sets, where its configs look."""

from __future__ import annotations

import pickle
import struct
from importlib import import_module
from pathlib import Path
from typing import Any

FEW = 2
"""Images of a set, for training and for evaluation each."""


def make_data(folder: Path) -> None:
    """Two images for training and two for evaluation of each data set."""
    import numpy as np
    from PIL import Image

    draw = np.random.RandomState(0)

    def image(*parts: str) -> None:
        path = folder.joinpath("data", *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.randint(0, 256, (96, 128, 3), np.uint8)).save(path)

    def text(content: str, *parts: str) -> None:
        path = folder.joinpath("data", *parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")

    for name in ("imagenet", "imagenet21k"):
        for number in range(FEW):
            image(name, "train", f"n{number:04}", f"{number}.JPEG")
            image(name, "val", f"v{number}.JPEG")
        text("v0.JPEG 0\nv1.JPEG 1\n", name, "meta", "val.txt")
        listed = "n0000/0.JPEG 0\nn0001/1.JPEG 1\n"
        text(listed, name, "meta", "train.txt")
    for number in range(FEW, 1000):  # a class each
        folder.joinpath("data", "imagenet", "train", f"n{number:04}").mkdir()
    for number in range(2 * FEW):
        image("CUB_200_2011", "images", f"{number}.jpg")
        image("VOCdevkit", "VOC2007", "JPEGImages", f"{number}.jpg")
        obj = "<object><name>cat</name><difficult>0</difficult></object>"
        other = "<object><name>dog</name><difficult>0</difficult></object>"
        xml = f"<annotation>{obj if number % 2 else other}</annotation>"
        text(xml, "VOCdevkit", "VOC2007", "Annotations", f"{number}.xml")
    numbers = range(1, 2 * FEW + 1)
    cub = {
        "images": [f"{n} {n - 1}.jpg" for n in numbers],
        "image_class_labels": [f"{n} {n}" for n in numbers],
        "train_test_split": [f"{n} {n % 2}" for n in numbers],
    }
    for name, lines in cub.items():
        text("\n".join(lines) + "\n", "CUB_200_2011", f"{name}.txt")
    for split, ids in (("trainval", "0\n1\n"), ("test", "2\n3\n")):
        text(ids, "VOCdevkit", "VOC2007", "ImageSets", "Main", f"{split}.txt")
    make_cifar(folder / "data", draw)
    make_mnist(folder / "data" / "mnist", draw)
    make_cars(folder / "data" / "stanfordcars", image)


def take_made_up_files() -> None:
    """Have MMClassification take CIFAR's files whatever their checksums are."""
    cifar: Any = import_module("mmcls.datasets.cifar")
    cifar.check_integrity = lambda path, md5=None: Path(path).exists()


def make_cifar(folder: Path, draw: Any) -> None:
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    for name, inner, files, meta in (
        ("cifar10", "cifar-10-batches-py", [*batches, "test_batch"], "batches.meta"),
        ("cifar100", "cifar-100-python", ["train", "test"], "meta"),
    ):
        home = folder / name / inner
        home.mkdir(parents=True)
        key = "labels" if name == "cifar10" else "fine_labels"
        for file in files:
            count = FEW if file in ("test_batch", "test", "train", batches[0]) else 0
            pixels = draw.randint(0, 256, (count, 3072)).astype("uint8")
            content = {"data": pixels, key: [0, 1][:count]}
            home.joinpath(file).write_bytes(pickle.dumps(content))
        names = [str(number) for number in range(100)]
        labels = {"label_names": names[:10], "fine_label_names": names}
        home.joinpath(meta).write_bytes(pickle.dumps(labels))


def make_mnist(folder: Path, draw: Any) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "t10k"):
        pixels = draw.randint(0, 256, (FEW, 28, 28)).astype("uint8").tobytes()
        images = struct.pack(">IIII", 2051, FEW, 28, 28) + pixels
        labels = struct.pack(">II", 2049, FEW) + bytes([1, 2])
        folder.joinpath(f"{split}-images-idx3-ubyte").write_bytes(images)
        folder.joinpath(f"{split}-labels-idx1-ubyte").write_bytes(labels)


def make_cars(folder: Path, image: Any) -> None:
    from importlib import import_module

    import numpy as np

    matlab: Any = import_module("scipy.io")
    folder.joinpath("devkit").mkdir(parents=True)
    names = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname")
    kind = [(name, object) for name in names]
    for split, file in (
        ("train", "cars_train_annos.mat"),
        ("test", "cars_test_annos_withlabels.mat"),
    ):
        rows = np.zeros((1, FEW), kind)
        for number in range(FEW):
            image("stanfordcars", f"cars_{split}", f"{number}.jpg")
            rows[0, number] = (1, 1, 2, 2, number + 1, f"{number}.jpg")
        matlab.savemat(str(folder / "devkit" / file), {"annotations": rows})
