"""What the image data sets that fit into memory have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from devrun.data.transforms import build_pipeline
from devrun.errors import DataError
from devrun.files import open_regular

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Those that Pillow decodes by itself: others are programs that it has run, as EPS."""


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
