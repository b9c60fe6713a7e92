"""The handwritten digits that scikit-learn carries: real data without a download."""

from __future__ import annotations

from typing import Any

import torch

from devrun.data.datasets.images import TensorImages
from devrun.errors import ConfigError
from devrun.registry import DATASETS


@DATASETS.register_module()
class DigitsDataset(TensorImages):
    """1797 images of 8 x 8 pixels in 10 classes (UCI, "Optical Recognition of
    Handwritten Digits"); the grey values 0 to 16 are spread over 0 to 255.

    Args:
        split: `train`, `val` or `all`. Of each class the same share goes to `val`.
        val_fraction: that share.
        seed: which samples go to `val`; the same seed, the same split, everywhere.
        pipeline: transforms of the image, a uint8 tensor (1, 8, 8).
    """

    def __init__(
        self,
        split: str = "train",
        val_fraction: float = 0.2,
        seed: int = 0,
        pipeline: Any = None,
    ) -> None:
        if split not in ("train", "val", "all"):
            raise ConfigError.of("split", f"must be train, val or all, got {split!r}")
        if not 0 < val_fraction < 1:
            raise ConfigError.of(
                "val_fraction", f"must be within 0 and 1: {val_fraction}"
            )
        images, targets = _load()
        if split != "all":
            in_val = _stratified(targets, val_fraction, seed)
            chosen = in_val if split == "val" else ~in_val
            images, targets = images[chosen], targets[chosen]
        super().__init__(images, targets, [str(i) for i in range(10)], pipeline)


def _load() -> tuple[torch.Tensor, torch.Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "DigitsDataset needs scikit-learn: pip install 'devrun[demo]'"
        ) from error
    digits = load_digits()
    images = torch.from_numpy(digits.images).mul(255 / 16).round().to(torch.uint8)
    return images.unsqueeze(1), torch.from_numpy(digits.target).to(torch.int64)


def _stratified(targets: torch.Tensor, fraction: float, seed: int) -> torch.Tensor:
    """Bool (N,): True for `fraction` of each class, chosen by `seed`."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.zeros(len(targets), dtype=torch.bool)
    for label in targets.unique():
        members = (targets == label).nonzero().flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        chosen[shuffled[: round(len(members) * fraction)]] = True
    return chosen
