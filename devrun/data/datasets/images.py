"""Images with labels: IDX files and MNIST, CIFAR-10, digits, folders of pictures."""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any, List, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from devrun.data.transforms import build_pipeline
from devrun.errors import ConfigError, DataError, nearest
from devrun.files import open_regular, regular_bytes
from devrun.registry import DATASETS
from devrun.text import joined

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Those that Pillow decodes by itself: others are programs that it has run, as EPS."""
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
_DENSEST = 200
"""Bytes for each one of a gzip-compressed file, beyond 64 MiB; MNIST has 5."""
_OF_CIFAR = (
    "airplane", "automobile", "bird", "cat", "deer",
    "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_RECORD = 1 + 3 * 32 * 32  # label, then the red, green and blue planes


class TensorImages(Dataset[Any]):
    """`images` (N, C, H, W) through `pipeline`, with their `targets` (N,).

    Attributes: `images` uint8, `targets` int64, `classes`, `num_classes`.
    """

    def __init__(
        self, images: Tensor, targets: Tensor, classes: Sequence[str], pipeline: Any
    ) -> None:
        if len(images) != len(targets):
            raise DataError(f"{len(images)} images, but {len(targets)} labels")
        self.images, self.targets = images, targets
        self.classes = tuple(classes)
        self.pipeline = build_pipeline(pipeline)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.pipeline(self.images[index]), int(self.targets[index])


@DATASETS.register_module()
class IDXDataset(TensorImages):
    """Images (N, H, W) and labels (N,) from two IDX files of bytes.

    Args:
        images, labels: the files.
        classes: names; the digits up to the largest label if not given.
        pipeline: transforms of the image, a uint8 tensor (1, H, W).
    """

    def __init__(
        self,
        images: str | os.PathLike[str],
        labels: str | os.PathLike[str],
        classes: Sequence[str] | None = None,
        pipeline: Any = None,
    ) -> None:
        pixels, targets = read_idx(images, 3), read_idx(labels, 1)
        if classes is None:
            classes = [str(i) for i in range(int(targets.max(initial=0)) + 1)]
        super().__init__(
            torch.from_numpy(pixels).unsqueeze(1),
            torch.from_numpy(targets).to(torch.int64),
            classes,
            pipeline,
        )


@DATASETS.register_module()
class MNIST(IDXDataset):
    """MNIST, Fashion-MNIST and their like: the four published files in a folder.

    Args:
        data_prefix: the folder; `.gz` files are read as they are.
        test_mode: the `t10k` pair instead of the `train` pair.
        pipeline: transforms of the image, a uint8 tensor (1, 28, 28).
    """

    def __init__(
        self,
        data_prefix: str | os.PathLike[str],
        test_mode: bool = False,
        pipeline: Any = None,
    ) -> None:
        part = "t10k" if test_mode else "train"
        images = _existing(Path(data_prefix), f"{part}-images", 3)
        labels = _existing(Path(data_prefix), f"{part}-labels", 1)
        super().__init__(images, labels, [str(i) for i in range(10)], pipeline)


@DATASETS.register_module()
class CIFAR10(TensorImages):
    """50,000 training or 10,000 test images of 3 x 32 x 32 in 10 classes.

    Of the binary files published by A. Krizhevsky (2009): those for Python are pickles,
    which `torchvision.datasets.CIFAR10` reads.

    Args:
        data_prefix: the folder of `data_batch_N.bin` and `test_batch.bin`, or the one
            above `cifar-10-batches-bin`.
        test_mode: the test images.
        pipeline: transforms of the image, a uint8 tensor (3, 32, 32).
    """

    def __init__(
        self,
        data_prefix: str | os.PathLike[str],
        test_mode: bool = False,
        pipeline: Any = None,
    ) -> None:
        parts = ["test_batch"]
        if not test_mode:
            parts = [f"data_batch_{number}" for number in range(1, 6)]
        folder = Path(data_prefix)
        if not (folder / f"{parts[0]}.bin").is_file():
            folder /= "cifar-10-batches-bin"
        table = np.concatenate([_records(folder / f"{part}.bin") for part in parts])
        super().__init__(
            torch.from_numpy(table[:, 1:].reshape(-1, 3, 32, 32)),
            torch.from_numpy(table[:, 0].astype(np.int64)),
            _OF_CIFAR,
            pipeline,
        )


def _records(path: Path) -> np.ndarray:
    if not path.is_file():
        raise DataError(
            f"CIFAR-10 is not complete: no file {path}; unpack cifar-10-binary.tar.gz "
            "from https://www.cs.toronto.edu/~kriz/cifar.html"
        )
    content = regular_bytes(path)
    if not content or len(content) % _RECORD:
        raise DataError(
            f"{path}: {len(content)} bytes are not a multiple of the record of "
            f"{_RECORD}; is the file truncated?"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, _RECORD)


_DIGITS = "datasets/data/digits.csv.gz"
"""Below the folder of scikit-learn, which ships the data set."""


@DATASETS.register_module()
class DigitsDataset(TensorImages):
    """1797 images of 8 x 8 pixels in 10 classes (UCI, "Optical Recognition of
    Handwritten Digits"); the grey values 0 to 16 are spread over 0 to 255.

    Args:
        split: `train`, `val` or `all`. Of each class a fifth goes to `val`, always
            the same one.
        pipeline: transforms of the image, a uint8 tensor (1, 8, 8).
    """

    def __init__(self, split: str = "train", pipeline: Any = None) -> None:
        if split not in ("train", "val", "all"):
            raise ConfigError.of("split", f"must be train, val or all, got {split!r}")
        package = find_spec("sklearn")
        if package is None or not package.submodule_search_locations:
            raise ConfigError(
                "DigitsDataset needs scikit-learn: pip install 'devrun[demo]'"
            )
        # only its file: each process would import scikit-learn for a second
        path = Path(package.submodule_search_locations[0], _DIGITS)
        table = torch.from_numpy(np.loadtxt(path, delimiter=","))
        images = table[:, :-1].mul(255 / 16).round().to(torch.uint8).view(-1, 8, 8)
        targets = table[:, -1].to(torch.int64)
        if split != "all":
            in_val = _stratified(targets, 0.2)
            chosen = in_val if split == "val" else ~in_val
            images, targets = images[chosen], targets[chosen]
        classes = [str(i) for i in range(10)]
        super().__init__(images.unsqueeze(1), targets, classes, pipeline)


def _stratified(targets: torch.Tensor, fraction: float) -> torch.Tensor:
    """Bool (N,): True for `fraction` of each class, chosen at random."""
    generator = torch.Generator().manual_seed(0)
    chosen = torch.zeros(len(targets), dtype=torch.bool)
    for label in targets.unique():
        members = (targets == label).nonzero().flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        chosen[shuffled[: round(len(members) * fraction)]] = True
    return chosen


@DATASETS.register_module(name=["ImageFolder", "ImageNet"])
class ImageFolder(Dataset[Any]):
    """(image, label) of the images below `data_prefix`, decoded by Pillow to RGB.

    The classes are the folders directly below, in the order of their names; within a
    class files go by path, at any depth, but links to folders are not followed there.
    With `ann_file` the images are its lines instead: a path below `data_prefix`, a
    space, and a label or a class name.

    Args:
        data_prefix: the folder.
        ann_file: the list.
        classes: names and their order; needed to read a list that has names.
        pipeline: transforms of the image, a Pillow image.
    """

    def __init__(
        self,
        data_prefix: str | os.PathLike[str],
        ann_file: str | os.PathLike[str] | None = None,
        classes: Sequence[str] | None = None,
        pipeline: Any = None,
    ) -> None:
        self.root = Path(data_prefix)
        if not self.root.is_dir():
            raise DataError(f"no such image folder: {self.root}")
        try:
            import PIL  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "ImageFolder needs Pillow: pip install 'devrun[images]'"
            ) from error
        if ann_file is None:
            names, paths, labels = _scan(self.root, classes)
        else:
            names, paths, labels = _listed(Path(ann_file), classes)
        self.classes = tuple(names)
        self.paths = paths
        """Relative to `root`."""
        self.targets = torch.tensor(labels, dtype=torch.int64)
        self.pipeline = build_pipeline(pipeline)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path = self.root / self.paths[index]
        try:
            image = decoded_image(path)
        except (OSError, ValueError) as error:
            reason = joined(error).replace(f" {str(path)!r}", "")
            raise DataError(f"cannot read the image {path}: {reason}") from error
        return self.pipeline(image), int(self.targets[index])


_Listing = Tuple[Sequence[str], List[str], List[int]]
"""Class names, paths and labels."""


def _scan(root: Path, classes: Sequence[str] | None) -> _Listing:
    """Of one folder per class."""
    found = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    names = found if classes is None else list(classes)
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        if name not in found:
            raise DataError(f"no folder of class {name!r}; {nearest(name, found)}")
        files = sorted(
            os.path.relpath(os.path.join(place, file), root)
            for place, _, inside in os.walk(root / name)
            for file in inside
            if file.lower().endswith(IMAGE_SUFFIXES)
        )
        paths += files
        labels += [label] * len(files)
    if not paths:
        raise DataError(
            f"the data set is empty: no images in the class folders of {root} "
            f"({len(names)} folders, looked for {' '.join(IMAGE_SUFFIXES)})"
        )
    return names, paths, labels


def _listed(ann_file: Path, classes: Sequence[str] | None) -> _Listing:
    """Of the lines of `ann_file`."""
    numbers = {name: label for label, name in enumerate(classes or ())}
    paths: list[str] = []
    labels: list[int] = []
    lines = regular_bytes(ann_file).decode().splitlines()
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        path, _, label = line.strip().rpartition(" ")
        if label in numbers:
            labels.append(numbers[label])
        elif path and label.isdecimal():
            labels.append(int(label))
        else:
            raise DataError(
                f"{ann_file}:{line_number}: {line.strip()[:80]!r} is not a path, a "
                f"space and a label; {nearest(label, numbers) or 'a number is a label'}"
            )
        paths.append(path)
    if not paths:
        raise DataError(f"the data set is empty: no lines in {ann_file}")
    return classes or [str(n) for n in range(max(labels) + 1)], paths, labels


def read_idx(path: str | os.PathLike[str], ndim: int) -> Any:
    """The uint8 array in an IDX file of `ndim` dimensions, plain or gzip-compressed.

    Layout (Y. LeCun, "The MNIST database", file formats): two zero bytes, a type
    code, the number of dimensions, each dimension as a 32-bit number, the values.

    Raises:
        DataError: not such a file, or shorter or longer than its header says.
    """
    content = regular_bytes(path)
    if content[:2] == b"\x1f\x8b":
        most = max(_DENSEST * len(content), 1 << 26)
        try:
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(most + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(
                f"{path}: the compressed file is damaged: {error}"
            ) from error
        if len(content) > most:
            raise DataError(f"{path}: it unpacks to more than {most} bytes")
    head, begin = bytes((0, 0, 0x08, ndim)), 4 + 4 * ndim
    if content[:4] != head or len(content) < begin:
        raise DataError(
            f"{path} is not an IDX file of bytes in {ndim} dimensions: it begins with "
            f"0x{content[:begin].hex() or '(nothing)'}, not 0x{head.hex()} and sizes"
        )
    shape = struct.unpack_from(f">{ndim}I", content, 4)
    there = len(content) - begin
    if there != math.prod(shape):
        raise DataError(
            f"{path}: the header says {' x '.join(map(str, shape))} values, that is "
            f"{math.prod(shape)} bytes; the file has {there}"
        )
    values = np.frombuffer(content, np.uint8, offset=begin)
    return values.reshape(shape).copy()


def _existing(folder: Path, name: str, ndim: int) -> Path:
    """The file of the MNIST family, of which copies differ in how they are named."""
    names = [f"{name}-idx{ndim}-ubyte", f"{name}.idx{ndim}-ubyte"]
    names += [f"{name}.gz" for name in names]
    for each in names:
        if (folder / each).is_file():
            return folder / each
    reason = "no such folder" if not folder.is_dir() else "none of them is there"
    raise DataError(
        f"MNIST not found in {folder}: {reason} (looked for {', '.join(names)})"
    )


def decoded_image(source: Any) -> Any:
    """The Pillow image, in RGB, in a file or in a stream of bytes.

    Raises:
        OSError: it cannot be read, or is no regular file.
        ValueError: it is broken, or far larger than a picture.
    """
    from PIL import Image

    if isinstance(source, (str, os.PathLike)):
        with open_regular(source) as stream:
            return decoded_image(stream)
    try:
        with Image.open(source, formats=FORMATS) as image:
            return image.convert("RGB")
    except Image.UnidentifiedImageError:
        raise OSError(f"it is none of {', '.join(FORMATS)}") from None
    # Pillow's decoders raise these, by format
    except (SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{error}") from error
