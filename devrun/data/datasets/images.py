"""Image data sets that fit into memory: IDX files and MNIST, CIFAR-10, digits."""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from devrun.data.transforms import build_pipeline
from devrun.errors import ConfigError, DataError
from devrun.files import open_regular, regular_bytes
from devrun.registry import DATASETS

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Those that Pillow decodes by itself: others are programs that it has run, as EPS."""
_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_DENSEST = 200
"""Bytes for each one of a gzip-compressed file, beyond 64 MiB; MNIST has 5."""
_OF_CIFAR = (
    "airplane", "automobile", "bird", "cat", "deer",
    "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_RECORD = 1 + 3 * 32 * 32  # label, then the red, green and blue planes


class TensorImages(Dataset[tuple[Any, int]]):
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
        classes: list[str] | None = None,
        pipeline: Any = None,
    ) -> None:
        for path in (images, labels):
            if not Path(path).is_file():
                raise DataError(f"no such IDX file: {path}")
        pixels, targets = read_idx(images), read_idx(labels)
        if pixels.ndim != 3 or pixels.dtype != np.uint8:
            raise DataError(
                f"{images}: images are bytes in 3 dimensions, this file has "
                f"{pixels.dtype} in {pixels.ndim}"
            )
        if targets.ndim != 1 or targets.dtype != np.uint8:
            raise DataError(
                f"{labels}: labels are bytes in 1 dimension, this file has "
                f"{targets.dtype} in {targets.ndim}"
            )
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
        files = []
        for kind in ("images-idx3", "labels-idx1"):
            dotted = kind.replace("-idx", ".idx")
            names = [f"{part}-{kind}-ubyte", f"{part}-{dotted}-ubyte"]
            names += [f"{name}.gz" for name in names]
            files.append(existing(Path(data_prefix), names, f"MNIST {kind[:6]}"))
        classes = [str(digit) for digit in range(10)]
        super().__init__(files[0], files[1], classes, pipeline)


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
        folder = _cifar_folder(Path(data_prefix), f"{parts[0]}.bin")
        table = np.concatenate([_records(folder / f"{part}.bin") for part in parts])
        super().__init__(
            torch.from_numpy(table[:, 1:].reshape(-1, 3, 32, 32)),
            torch.from_numpy(table[:, 0].astype(np.int64)),
            _OF_CIFAR,
            pipeline,
        )


def _cifar_folder(prefix: Path, first: str) -> Path:
    """The one that holds `first`."""
    for folder in (prefix, prefix / "cifar-10-batches-bin"):
        if (folder / first).is_file():
            return folder
    reason = f"no {first} there or in cifar-10-batches-bin"
    if not prefix.is_dir():
        reason = "no such folder"
    raise DataError(
        f"CIFAR-10 not found in {prefix}: {reason}; unpack cifar-10-binary.tar.gz "
        "from https://www.cs.toronto.edu/~kriz/cifar.html"
    )


def _records(path: Path) -> np.ndarray:
    if not path.is_file():
        raise DataError(f"CIFAR-10 is not complete: no file {path}")
    content = regular_bytes(path)
    if not content or len(content) % _RECORD:
        raise DataError(
            f"{path}: {len(content)} bytes are not a multiple of the record of "
            f"{_RECORD}; is the file truncated?"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, _RECORD)


@DATASETS.register_module()
class DigitsDataset(TensorImages):
    """1797 images of 8 x 8 pixels in 10 classes (UCI, "Optical Recognition of
    Handwritten Digits"); the grey values 0 to 16 are spread over 0 to 255.

    Args:
        split: `train`, `val` or `all`. Of each class the same share goes to `val`.
        val_fraction: that share.
        seed: which samples go to `val`; the same seed, the same split, everywhere.
        pipeline: transforms of the image, a uint8 tensor (1, 8, 8).
    """

    def __init__(
        self,
        split: str = "train",
        val_fraction: float = 0.2,
        seed: int = 0,
        pipeline: Any = None,
    ) -> None:
        if split not in ("train", "val", "all"):
            raise ConfigError.of("split", f"must be train, val or all, got {split!r}")
        if not 0 < val_fraction < 1:
            raise ConfigError.of(
                "val_fraction", f"must be within 0 and 1: {val_fraction}"
            )
        images, targets = _load()
        if split != "all":
            in_val = _stratified(targets, val_fraction, seed)
            chosen = in_val if split == "val" else ~in_val
            images, targets = images[chosen], targets[chosen]
        super().__init__(images, targets, [str(i) for i in range(10)], pipeline)


def _load() -> tuple[torch.Tensor, torch.Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "DigitsDataset needs scikit-learn: pip install 'devrun[demo]'"
        ) from error
    digits = load_digits()
    images = torch.from_numpy(digits.images).mul(255 / 16).round().to(torch.uint8)
    return images.unsqueeze(1), torch.from_numpy(digits.target).to(torch.int64)


def _stratified(targets: torch.Tensor, fraction: float, seed: int) -> torch.Tensor:
    """Bool (N,): True for `fraction` of each class, chosen by `seed`."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.zeros(len(targets), dtype=torch.bool)
    for label in targets.unique():
        members = (targets == label).nonzero().flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        chosen[shuffled[: round(len(members) * fraction)]] = True
    return chosen


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in an IDX file, plain or gzip-compressed.

    Layout (Y. LeCun, "The MNIST database", file formats): two zero bytes, a type
    code, the number of dimensions, each dimension as a 32-bit number, the values.

    Raises:
        DataError: not such a file, or shorter or longer than its header says.
    """
    path = Path(path)
    content = io.BytesIO(regular_bytes(path))
    packed = content.read(2) == b"\x1f\x8b"
    content.seek(0)
    size = len(content.getbuffer())
    try:
        if packed:
            return _read(gzip.open(content), path, most=max(_DENSEST * size, 1 << 26))
        return _read(content, path, most=size)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the compressed file is damaged: {error}") from error


def _read(file: IO[bytes] | gzip.GzipFile, path: Path, most: int) -> np.ndarray:
    """The array; its header may claim any size, but `most` bytes are read."""
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _TYPES or head[3] == 0:
        raise DataError(
            f"{path} is not an IDX file: it begins with 0x{head.hex() or '(nothing)'}"
        )
    dtype, ndim = np.dtype(_TYPES[head[2]]), head[3]
    sizes = file.read(4 * ndim)
    if len(sizes) < 4 * ndim:
        raise DataError(f"{path}: ends within its header of {ndim} dimensions")
    shape = struct.unpack(f">{ndim}I", sizes)
    wanted = math.prod(shape) * dtype.itemsize
    data = file.read(min(wanted, most) + 1)
    if most < len(data) <= wanted:
        raise DataError(f"{path}: it unpacks to more than {most} bytes")
    if len(data) != wanted:
        there = "more" if len(data) > wanted else len(data)
        raise DataError(
            f"{path}: the header says {' x '.join(map(str, shape))} values, that is "
            f"{wanted} bytes; the file has {there}"
        )
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def existing(folder: Path, names: Sequence[str], what: str) -> Path:
    """The first of `names` that is a file in `folder`.

    Raises:
        DataError: no such file; the message lists the names tried.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    reason = "no such folder" if not folder.is_dir() else "none of them is there"
    raise DataError(
        f"{what} not found in {folder}: {reason} (looked for {', '.join(names)})"
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
