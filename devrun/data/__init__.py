"""Data: loaders that can start anywhere, data sets and transforms by name."""

from devrun.data.bucketing import bucketed
from devrun.data.build import build_dataloader, build_dataset, build_loaders
from devrun.data.datasets.huggingface import HuggingFaceDataset
from devrun.data.datasets.images import (
    CIFAR10,
    MNIST,
    DigitsDataset,
    IDXDataset,
    ImageFolder,
)
from devrun.data.datasets.synthetic import SyntheticClassification, SyntheticImages
from devrun.data.datasets.text import TextCorpus, TextParagraphs
from devrun.data.datasets.wrappers import (
    ConcatDataset,
    ReloadedDataset,
    RepeatDataset,
)
from devrun.data.prepared import PreparedLoader
from devrun.data.spec import LoaderSpec
from devrun.data.transforms import build_pipeline
from devrun.registry import DATASETS, TRANSFORMS

__all__ = [
    "CIFAR10",
    "DATASETS",
    "MNIST",
    "TRANSFORMS",
    "ConcatDataset",
    "DigitsDataset",
    "HuggingFaceDataset",
    "IDXDataset",
    "ImageFolder",
    "LoaderSpec",
    "PreparedLoader",
    "ReloadedDataset",
    "RepeatDataset",
    "SyntheticClassification",
    "SyntheticImages",
    "TextCorpus",
    "TextParagraphs",
    "bucketed",
    "build_dataloader",
    "build_dataset",
    "build_loaders",
    "build_pipeline",
]
