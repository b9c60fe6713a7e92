"""Rows of Hugging Face's `datasets`, through a tokenizer or an image processor."""

from __future__ import annotations

import glob
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from devrun.blame import cause_of
from devrun.data.datasets.images import decoded_image
from devrun.errors import ConfigError, DataError, DevrunError, nearest
from devrun.files import check_regular
from devrun.registry import DATASETS, Registry

READERS = {
    ".csv": "from_csv",
    ".json": "from_json",
    ".jsonl": "from_json",
    ".parquet": "from_parquet",
    ".txt": "from_text",
}
"""Suffix of a file -> the reader of `datasets.Dataset` for it."""
_IMAGES = ("transformers.image_processing_base", "ImageProcessingMixin")
_TOKENS = ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase")


def _is_any_of(kind: type, *paths: tuple[str, str]) -> bool:
    homes = ((sys.modules.get(module), name) for module, name in paths)
    return issubclass(kind, tuple(getattr(home, n) for home, n in homes if home))


class _Processors(type):
    def __subclasscheck__(cls, kind: type) -> bool:
        return _is_any_of(kind, _IMAGES)

    def __instancecheck__(cls, value: Any) -> bool:
        return _is_any_of(type(value), _IMAGES, _TOKENS)


class Processor(metaclass=_Processors):
    """A tokenizer or image processor of transformers, which is not imported for it.

    A config may name the class of an image processor; tokenizers come from a folder.
    """


PROCESSORS = Registry("processor", expects=lambda: Processor)


@DATASETS.register_module()
class HuggingFaceDataset(Dataset[Any]):
    """dict(column -> value) of each row, with lists of numbers as tensors.

    Nothing is downloaded: the rows come from files that are here. An image becomes a
    Pillow image in RGB, for the processor.

    Args:
        path: a folder that `save_to_disk` wrote; or files of one kind, of `.csv`,
            `.json`, `.jsonl`, `.parquet` and `.txt` (a line is a row, its column
            `text`): one, a pattern, or a list of these.
        split: which one, where the folder holds several.
        columns: column -> the name that it has in a sample, as in `{label: labels}`;
            others are left out. None keeps all.
        processor: of transformers, a dict with `type`: `transformers.AutoTokenizer.
            from_pretrained`, or the same of `AutoImageProcessor`, or the class of an
            image processor.
        inputs: the column that the processor is given, or a list of them; a sample has
            what it makes of them in their place.
        arguments: of the call of the processor, such as `{truncation: true}`.

    Raises:
        ConfigError: `datasets` is not installed, or there is no such column.
        DataError: no such files, or they cannot be read.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        processor: Mapping[str, Any] | Any = None,
        inputs: str | Sequence[str] = "text",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.processor: Any = (
            PROCESSORS.build(processor) if isinstance(processor, dict) else processor
        )
        self.inputs = [inputs] if isinstance(inputs, str) else list(inputs)
        self.arguments = dict(arguments or {})
        try:
            import datasets
        except ImportError as error:
            raise ConfigError(
                "HuggingFaceDataset needs the package datasets: pip install datasets"
            ) from error
        datasets.disable_progress_bars()
        self.rows = _read(datasets, path, split).with_format(None)
        self._images = self._take_images(datasets)
        there = self.rows.column_names
        read = self.inputs if self.processor is not None else []
        for key, names in (("inputs", read), ("columns", columns or ())):
            for name in names:
                if name not in there:
                    raise ConfigError.of(
                        key,
                        f"names {name!r}; {nearest(name, there)} (columns of {path})",
                    )
        self._check_pictures(read)
        self.columns = (
            {name: name for name in there if name not in read}
            if columns is None
            else dict(columns)
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        for name in self._images:
            row[name] = _image(row[name], index)
        sample = {new: row[old] for old, new in self.columns.items()}
        if self.processor is not None:
            batch = self.processor(
                *([row[name]] for name in self.inputs), **self.arguments
            )
            sample.update((key, value[0]) for key, value in batch.items())
        return {key: _tensor(value) for key, value in sample.items()}

    @property
    def targets(self) -> Any:
        """The labels, where a sample has one class number; else None."""
        for old, new in self.columns.items():
            if new in ("label", "labels") and old in self.rows.column_names:
                return self.rows[old][:]
        return None

    def _take_images(self, datasets: Any) -> list[str]:
        """Names of the image columns, which are decoded here: a row may name a URL."""
        images = []
        for name, kind in self.rows.features.items():
            if isinstance(kind, datasets.Image):
                images.append(name)
                continue
            for part in _kinds_in(kind):
                if hasattr(part, "decode_example"):
                    raise ConfigError(
                        f"column {name!r} has a {type(part).__name__}, which is not "
                        "read here: leave it out of the data set (remove_columns)"
                    )
        for name in images:
            self.rows = self.rows.cast_column(name, datasets.Image(decode=False))
        return images

    def _check_pictures(self, inputs: Sequence[str]) -> None:
        """An image processor would fetch or open what a text names."""
        if not _is_any_of(type(self.processor), _IMAGES):
            return
        for name in inputs:
            kind = type(self.rows.features[name]).__name__
            if name not in self._images and not kind.startswith("Array"):
                raise ConfigError.of(
                    "inputs",
                    f"names {name!r}, a column of the kind {kind}: an image processor "
                    "takes columns of the kind Image, or of arrays",
                )


def _kinds_in(kind: Any) -> Iterator[Any]:
    """`kind`, and those of the parts of a list or a dict."""
    yield kind
    if isinstance(kind, Mapping):
        kind = list(kind.values())
    inside = kind if isinstance(kind, list) else [getattr(kind, "feature", None)]
    for part in inside:
        if part is not None:
            yield from _kinds_in(part)


def _read(datasets: Any, path: Any, split: str | None) -> Any:
    try:
        if isinstance(path, str) and Path(path).is_dir():
            folder = Path(path).absolute()
            check_regular(each for each in folder.rglob("*") if not each.is_dir())
            found = datasets.load_from_disk(str(folder))
        else:
            reader, files = _files(path)
            check_regular(files)
            found = getattr(datasets.Dataset, reader)(files)
    except DevrunError:
        raise
    except Exception as error:
        raise DataError(f"cannot read {path}: {cause_of(error)}") from error
    if not isinstance(found, dict):
        return found
    if split not in found:
        hint = nearest(str(split), found)
        raise ConfigError.of("split", f"of {path} must be given: {split!r}; {hint}")
    return found[split]


def _files(path: Any) -> tuple[str, list[str]]:
    """The reader, and the files in order; each is one that is here."""
    files: list[str] = []
    for pattern in [path] if isinstance(path, str) else path:
        named = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern))
        if not named:
            raise DataError(
                f"no such file or folder: {pattern!r}; it must be here, as nothing is "
                "downloaded (hf download NAME --repo-type dataset --local-dir FOLDER)"
            )
        files += [str(Path(name).absolute()) for name in named]
    suffixes = {Path(name).suffix.lower() for name in files}
    if len(suffixes) != 1 or not suffixes <= READERS.keys():
        raise ConfigError.of(
            "path",
            f"must name files of one kind, of {', '.join(READERS)}, got "
            f"{', '.join(sorted(suffixes))}",
        )
    return READERS[suffixes.pop()], files


def _image(value: Any, index: int) -> Any:
    """The Pillow image of bytes, or of a path that is here."""
    if value is None:
        raise DataError(f"row {index} has no image")
    source = value["path"] if value["bytes"] is None else io.BytesIO(value["bytes"])
    try:
        return decoded_image(source)
    except (OSError, ValueError) as error:
        raise DataError(
            f"row {index}: cannot read the image: {cause_of(error)}"
        ) from error


def _tensor(value: Any) -> Any:
    """A list of numbers as a tensor, so that batches of them are tensors."""
    if not isinstance(value, (list, tuple)) and not hasattr(value, "__array__"):
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):  # texts, lists of other lengths
        return value
