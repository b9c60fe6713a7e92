"""Data: loaders that can start anywhere, data sets and transforms by name."""

from devrun.data.bucketing import bucketed as bucketed
from devrun.data.build import build_dataloader as build_dataloader
from devrun.data.build import build_dataset as build_dataset
from devrun.data.build import build_loaders as build_loaders
from devrun.data.datasets.huggingface import HuggingFaceDataset as HuggingFaceDataset
from devrun.data.datasets.images import CIFAR10 as CIFAR10
from devrun.data.datasets.images import MNIST as MNIST
from devrun.data.datasets.images import DigitsDataset as DigitsDataset
from devrun.data.datasets.images import IDXDataset as IDXDataset
from devrun.data.datasets.images import ImageFolder as ImageFolder
from devrun.data.datasets.synthetic import (
    SyntheticClassification as SyntheticClassification,
)
from devrun.data.datasets.synthetic import SyntheticImages as SyntheticImages
from devrun.data.datasets.text import TextCorpus as TextCorpus
from devrun.data.datasets.text import TextParagraphs as TextParagraphs
from devrun.data.datasets.wrappers import ConcatDataset as ConcatDataset
from devrun.data.datasets.wrappers import ReloadedDataset as ReloadedDataset
from devrun.data.datasets.wrappers import RepeatDataset as RepeatDataset
from devrun.data.prepared import PreparedLoader as PreparedLoader
from devrun.data.spec import LoaderSpec as LoaderSpec
from devrun.data.transforms import build_pipeline as build_pipeline
from devrun.registry import DATASETS as DATASETS
from devrun.registry import TRANSFORMS as TRANSFORMS
