"""IDX files, the format of MNIST: big-endian header, then the values."""

from __future__ import annotations

import gzip
import io
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from devrun.data.datasets.images import TensorImages, existing
from devrun.errors import DataError
from devrun.files import regular_bytes
from devrun.registry import DATASETS

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_DENSEST = 200
"""Bytes for each one of a gzip-compressed file, beyond 64 MiB; MNIST has 5."""


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
