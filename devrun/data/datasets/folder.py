"""ImageNet-style folders: one folder per class, or a list of files with labels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from devrun.data.datasets.images import decoded_image
from devrun.data.transforms import build_pipeline
from devrun.errors import ConfigError, DataError, nearest
from devrun.files import regular_bytes
from devrun.registry import DATASETS
from devrun.text import joined

IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")


@DATASETS.register_module(name=["ImageFolder", "ImageNet"])
class ImageFolder(Dataset[tuple[Any, int]]):
    """(image, label) of the images below `data_prefix`, decoded by Pillow to RGB.

    The classes are the folders directly below, in the order of their names; within a
    class files go by path, at any depth. With `ann_file` the images are its lines
    instead: a path below `data_prefix`, a space, and a label or a class name.

    Args:
        data_prefix: the folder.
        ann_file: the list.
        classes: names and their order; needed to read a list that has names.
        pipeline: transforms of the image, a Pillow image.
        on_bad_image: `stop` the run at an image that is missing or broken, or `skip`
            it, with a warning that names it, up to the loader's `max_skipped`.
    """

    def __init__(
        self,
        data_prefix: str | os.PathLike[str],
        ann_file: str | os.PathLike[str] | None = None,
        classes: Sequence[str] | None = None,
        pipeline: Any = None,
        on_bad_image: str = "stop",
    ) -> None:
        if on_bad_image not in ("stop", "skip"):
            raise ConfigError.of(
                "on_bad_image", f"must be stop or skip, got {on_bad_image}"
            )
        self.on_sample_error = on_bad_image
        self.root = Path(data_prefix)
        if not self.root.is_dir():
            raise DataError(f"no such image folder: {self.root}")
        _check_pillow()
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
        return self.pipeline(self.decoded(index)), int(self.targets[index])

    def decoded(self, index: int) -> Any:
        """The Pillow image, in RGB, before the pipeline."""
        path = self.root / self.paths[index]
        try:
            return decoded_image(path)
        except (OSError, ValueError) as error:
            reason = joined(error).replace(f" {str(path)!r}", "")
            raise DataError(f"cannot read the image {path}: {reason}") from error


def _check_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "ImageFolder needs Pillow: pip install 'devrun[images]'"
        ) from error


def _scan(
    root: Path, classes: Sequence[str] | None
) -> tuple[Sequence[str], list[str], list[int]]:
    """Class names, paths and labels of one folder per class."""
    found = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    names = found if classes is None else list(classes)
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        if name not in found:
            raise DataError(f"no folder of class {name!r}; {nearest(name, found)}")
        files = sorted(_images_below(root / name, root))
        paths += files
        labels += [label] * len(files)
    if not paths:
        raise DataError(
            f"the data set is empty: no images in the class folders of {root} "
            f"({len(names)} folders, looked for {' '.join(IMAGE_SUFFIXES)})"
        )
    return names, paths, labels


def _images_below(folder: Path, root: Path) -> Iterator[str]:
    """Their paths below `root`; each folder once, as links may lead in circles."""
    seen = set()
    for place, inner, files in os.walk(folder, followlinks=True):
        facts = os.stat(place)
        if (facts.st_dev, facts.st_ino) in seen:
            inner.clear()
            continue
        seen.add((facts.st_dev, facts.st_ino))
        for file in files:
            if file.lower().endswith(IMAGE_SUFFIXES):
                yield os.path.relpath(os.path.join(place, file), root)


def _listed(
    ann_file: Path, classes: Sequence[str] | None
) -> tuple[Sequence[str], list[str], list[int]]:
    """Class names, paths and labels of the lines of `ann_file`."""
    if not ann_file.is_file():
        raise DataError(f"no such ann_file: {ann_file}")
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
