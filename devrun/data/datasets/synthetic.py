"""Made-up data that a model can learn: for rehearsals, tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from devrun.registry import DATASETS


@DATASETS.register_module()
class SyntheticClassification(Dataset[Any]):
    """(input of `shape`, label): a pattern per class plus Gaussian noise.

    Sample i depends on (`seed`, i) alone and is computed when asked for. Take the
    same `seed` and another `offset` for validation samples of the same classes.
    """

    def __init__(
        self,
        num_samples: int = 256,
        shape: Sequence[int] = (16,),
        num_classes: int = 4,
        noise: float = 0.5,
        seed: int = 0,
        offset: int = 0,
    ) -> None:
        self.shape, self.noise = tuple(shape), noise
        self.seed, self.offset = seed, offset
        self.classes = tuple(str(label) for label in range(num_classes))
        self.targets = torch.arange(offset, offset + num_samples) % num_classes

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        label = int(self.targets[index])
        noise = self._normal(self.num_classes + self.offset + index)
        return self.pattern(label) + self.noise * noise, label

    def pattern(self, label: int) -> torch.Tensor:
        """What the samples of a class have in common."""
        return self._normal(label)

    def _normal(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed((self.seed << 32) + number)
        return torch.randn(self.shape, generator=generator)


@DATASETS.register_module()
class SyntheticImages(SyntheticClassification):
    """`SyntheticClassification` of the shape and classes of ImageNet by default."""

    def __init__(
        self,
        num_samples: int = 256,
        shape: Sequence[int] = (3, 224, 224),
        num_classes: int = 1000,
        noise: float = 0.5,
        seed: int = 0,
        offset: int = 0,
    ) -> None:
        super().__init__(num_samples, shape, num_classes, noise, seed, offset)
