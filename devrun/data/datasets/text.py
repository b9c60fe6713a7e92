"""Text files as pieces of bytes, for language models."""

from __future__ import annotations

import os
import re
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from devrun.errors import ConfigError, DataError
from devrun.files import regular_bytes
from devrun.registry import DATASETS

STDLIB = "stdlib"
SUFFIXES = (".txt", ".md", ".py")
_PARAGRAPH = re.compile(rb"(?:[^\n\0]+\n?)+")
_NOT_SOURCE = ("site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3")


@DATASETS.register_module(name=["TextCorpus", "LanguageModelDataset"])
class TextCorpus(Dataset[Any]):
    """dict(input_ids, labels), int64 (block_size,), the labels being the same tokens:
    the model shifts them, as Hugging Face's models and the GPT here do.

    A token is a byte, so the vocabulary is 256 and any file will do. Files follow one
    another in the order of their names with a zero byte after each; the blocks are
    taken one after the other. `lengths` (int64) has the tokens of each sample.

    Args:
        files: `stdlib` (the source of Python's own library, which every machine has),
            or a file, or a folder (`*.txt`, `*.md`, `*.py` at any depth).
        split: `train`, `val` or `all`; whole files go to one or the other.
        val_fraction: of the files, chosen by name: a file stays on its side when
            others come or go. A single file is cut by bytes instead.
        block_size: tokens of one sample.
        max_bytes: of the split, the rest is left out.
    """

    vocab_size = 256
    num_classes = 256
    least = 1
    """Tokens that a sample may have."""

    def __init__(
        self,
        files: str | os.PathLike[str] = STDLIB,
        split: str = "train",
        val_fraction: float = 0.1,
        block_size: int = 128,
        max_bytes: int | None = None,
    ) -> None:
        if block_size < self.least:
            raise ConfigError.of(
                "block_size", f"must be at least {self.least}, got {block_size}"
            )
        text = _text_of(files, split, val_fraction, max_bytes)
        self.tokens = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
        self.begins, self.lengths = self._pieces(text, block_size)
        if len(self) == 0:
            raise DataError(
                f"the data set is empty: the {split} split of {files!r} has "
                f"{len(text)} bytes, too few for a sample (block_size {block_size})"
            )

    def _pieces(self, text: bytes, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the samples begin, and their tokens, at most `size`."""
        begins = torch.arange(0, len(text) // size * size, size)
        return begins, torch.full_like(begins, size)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        begin, length = int(self.begins[index]), int(self.lengths[index])
        tokens = self.tokens[begin : begin + length].to(torch.int64)
        return {"input_ids": tokens, "labels": tokens}

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, of which some may be no part of a character."""
        return bytes(tokens).decode(errors="replace")


@DATASETS.register_module()
class TextParagraphs(TextCorpus):
    """As `TextCorpus`, but a sample is a paragraph: 2 to `block_size` tokens.

    Paragraphs end at an empty line or with the file; a longer one is cut off, a
    single byte left out. To make batches of them, pad `input_ids` with anything and
    `labels` with -100, as the loader option `buckets` does.
    """

    least = 2

    def _pieces(self, text: bytes, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        spans = [match.span() for match in _PARAGRAPH.finditer(text)]
        ends = torch.tensor(spans, dtype=torch.int64).reshape(-1, 2)
        lengths = (ends[:, 1] - ends[:, 0]).clamp(max=size)
        return ends[lengths > 1, 0], lengths[lengths > 1]


def _text_of(
    files: str | os.PathLike[str],
    split: str,
    val_fraction: float,
    max_bytes: int | None,
) -> bytes:
    if split not in ("train", "val", "all"):
        raise ConfigError.of("split", f"must be train, val or all, got {split!r}")
    if not 0 < val_fraction < 1:
        raise ConfigError.of("val_fraction", f"must be within 0 and 1: {val_fraction}")
    found = _find(files)
    if len(found) == 1:
        content = regular_bytes(found[0][1])
        cut = round(len(content) * (1 - val_fraction))
        parts = {"train": content[:cut], "val": content[cut:], "all": content}
        return parts[split][:max_bytes]
    text = bytearray()
    for name, path in found:
        in_val = zlib.crc32(name.encode()) < val_fraction * 2**32
        if split == "all" or in_val == (split == "val"):
            left = None if max_bytes is None else max_bytes - len(text)
            text += regular_bytes(path, left) + b"\0"
            if max_bytes is not None and len(text) >= max_bytes:
                break
    return bytes(text[:max_bytes])


def _find(files: str | os.PathLike[str]) -> list[tuple[str, Path]]:
    """(name, path) of each file, in the order of names that no machine changes."""
    if files == STDLIB:
        return sorted(_standard_library())
    root = Path(files)
    if root.is_file():
        return [(root.name, root)]
    inside = (file for file in root.rglob("*") if file.suffix in SUFFIXES)
    found = [(f.relative_to(root).as_posix(), f) for f in inside if f.is_file()]
    if not found:
        what = "no text file in" if root.is_dir() else "no such file or folder:"
        raise DataError(f"{what} {str(files)!r}")
    return sorted(found)


def _standard_library() -> Iterator[tuple[str, Path]]:
    root = sysconfig.get_paths()["stdlib"]
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in _NOT_SOURCE]
        for file in files:
            if file.endswith(".py"):
                path = Path(folder, file)
                yield path.relative_to(root).as_posix(), path
