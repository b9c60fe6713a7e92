"""CIFAR-10 from its published files (A. Krizhevsky, 2009), both layouts."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from devrun.data.datasets.images import TensorImages
from devrun.errors import DataError
from devrun.files import regular_bytes
from devrun.registry import DATASETS

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
PUBLISHED_MD5: Mapping[str, str] = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
"""Of the files in `cifar-10-batches-py`, as torchvision publishes them too."""
_ALLOWED = (("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"))
_ARRAY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray")
_RECORD = 1 + 3 * 32 * 32  # label, then the red, green and blue planes


@DATASETS.register_module()
class CIFAR10(TensorImages):
    """50,000 training or 10,000 test images of 3 x 32 x 32 in 10 classes.

    Args:
        data_prefix: the folder of `data_batch_N.bin` and `test_batch.bin`, or of the
            Python files, or the one above `cifar-10-batches-bin` or `-py`.
        test_mode: the test images.
        pipeline: transforms of the image, a uint8 tensor (3, 32, 32).
        checksums: MD5 of each Python file. Those files are pickles, which can run
            code when read: one that does not match is not opened.
    """

    def __init__(
        self,
        data_prefix: str | os.PathLike[str],
        test_mode: bool = False,
        pipeline: Any = None,
        checksums: Mapping[str, str] = PUBLISHED_MD5,
    ) -> None:
        parts = ["test_batch"]
        if not test_mode:
            parts = [f"data_batch_{number}" for number in range(1, 6)]
        folder, binary = _locate(Path(data_prefix), parts[0])
        records = []
        for part in parts:
            path = folder / (f"{part}.bin" if binary else part)
            if not path.is_file():
                raise DataError(f"CIFAR-10 is not complete: no file {path}")
            content = regular_bytes(path)
            if binary:
                records.append(_from_binary(content, path))
            else:
                records.append(_from_python(content, path, checksums.get(part)))
        table = np.concatenate(records)
        super().__init__(
            torch.from_numpy(table[:, 1:].reshape(-1, 3, 32, 32)),
            torch.from_numpy(table[:, 0].astype(np.int64)),
            CLASSES,
            pipeline,
        )


def _locate(prefix: Path, first: str) -> tuple[Path, bool]:
    """The folder that holds `first`, and whether it has the binary layout."""
    for folder in (prefix, prefix / "cifar-10-batches-bin"):
        if (folder / f"{first}.bin").is_file():
            return folder, True
    for folder in (prefix, prefix / "cifar-10-batches-py"):
        if (folder / first).is_file():
            return folder, False
    reason = f"no {first}.bin and no {first} there or in cifar-10-batches-bin or -py"
    if not prefix.is_dir():
        reason = "no such folder"
    raise DataError(
        f"CIFAR-10 not found in {prefix}: {reason}; unpack cifar-10-binary.tar.gz "
        "from https://www.cs.toronto.edu/~kriz/cifar.html"
    )


def _from_binary(content: bytes, path: Path) -> np.ndarray:
    if not content or len(content) % _RECORD:
        raise DataError(
            f"{path}: {len(content)} bytes are not a multiple of the record of "
            f"{_RECORD}; is the file truncated?"
        )
    return np.frombuffer(content, np.uint8).reshape(-1, _RECORD)


def _from_python(content: bytes, path: Path, checksum: str | None) -> np.ndarray:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != checksum:
        raise DataError(
            f"{path}: MD5 {found} is not the published {checksum}; the file is a "
            "pickle and is not opened. Unpack it anew, or use the binary version"
        )
    try:
        batch = ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
        pixels, labels = batch["data"], batch["labels"]
        return np.hstack([np.array(labels, np.uint8)[:, None], pixels])
    except (pickle.UnpicklingError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not a CIFAR-10 batch: {error}") from error


class ArrayUnpickler(pickle.Unpickler):
    """Builds dicts, lists, numbers, strings and numpy arrays, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if name == "_reconstruct" and module in _ARRAY_MODULES:
            return _reconstruct
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _reconstruct(kind: type, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """What numpy's pickles call first, under a name that moved between versions."""
    array: np.ndarray = np.ndarray(shape, np.dtype(dtype))
    return array
