"""Data: loaders that can start anywhere, data sets and transforms by name."""

from devrun.data.bucketing import bucketed
from devrun.data.build import build_dataloader, build_dataset, build_loaders
from devrun.data.datasets import (
    CIFAR10,
    MNIST,
    ConcatDataset,
    DigitsDataset,
    IDXDataset,
    ImageFolder,
    RepeatDataset,
    SyntheticClassification,
    SyntheticImages,
    TextCorpus,
    TextParagraphs,
)
from devrun.data.facts import check_labels
from devrun.data.prepared import PreparedLoader
from devrun.data.sampler import EpochBatchSampler, KeyedBatchSampler, SampleKey
from devrun.data.seeded import SeededDataset
from devrun.data.spec import ConfiguredLoader, LoaderSpec
from devrun.data.streaming import FileShards
from devrun.data.transforms import Compose, build_pipeline
from devrun.registry import DATASETS, TRANSFORMS

__all__ = [
    "CIFAR10",
    "DATASETS",
    "MNIST",
    "TRANSFORMS",
    "Compose",
    "ConcatDataset",
    "ConfiguredLoader",
    "DigitsDataset",
    "EpochBatchSampler",
    "FileShards",
    "IDXDataset",
    "ImageFolder",
    "KeyedBatchSampler",
    "LoaderSpec",
    "PreparedLoader",
    "RepeatDataset",
    "SampleKey",
    "SeededDataset",
    "SyntheticClassification",
    "SyntheticImages",
    "TextCorpus",
    "TextParagraphs",
    "bucketed",
    "build_dataloader",
    "build_dataset",
    "build_loaders",
    "build_pipeline",
    "check_labels",
]
