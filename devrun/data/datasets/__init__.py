"""Data sets by name; importing this registers them in DATASETS."""

from devrun.data.datasets.huggingface import HuggingFaceDataset
from devrun.data.datasets.images import (
    CIFAR10,
    MNIST,
    DigitsDataset,
    IDXDataset,
    ImageFolder,
    read_idx,
)
from devrun.data.datasets.synthetic import (
    SyntheticClassification,
    SyntheticImages,
)
from devrun.data.datasets.text import TextCorpus, TextParagraphs
from devrun.data.datasets.wrappers import ConcatDataset, RepeatDataset

__all__ = [
    "CIFAR10",
    "MNIST",
    "ConcatDataset",
    "DigitsDataset",
    "HuggingFaceDataset",
    "IDXDataset",
    "ImageFolder",
    "RepeatDataset",
    "SyntheticClassification",
    "SyntheticImages",
    "TextCorpus",
    "TextParagraphs",
    "read_idx",
]
