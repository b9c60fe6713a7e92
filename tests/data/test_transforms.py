"""Transforms give the same on a tensor and on a Pillow image."""

import random

import numpy as np
import pytest
import torch

from devrun.data.transforms import (
    Compose,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    ToTensor,
    as_tensor,
    build_pipeline,
)
from devrun.errors import ConfigError, ConfigTypeError, DataError

Image = pytest.importorskip("PIL.Image")

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def both():
    """One picture of 20 x 30 as a tensor (3, 20, 30) and as a Pillow image."""
    return torch.from_numpy(PIXELS).permute(2, 0, 1), Image.fromarray(PIXELS)


@pytest.mark.parametrize(
    "transform",
    [
        ToTensor(),
        RandomCrop(16),
        RandomCrop(24, padding=4),
        RandomHorizontalFlip(1.0),
        Normalize([100.0, 110.0, 120.0], [50.0, 60.0, 70.0]),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_tensor_and_pillow_agree(transform):
    results = []
    for image in both():
        random.seed(5)
        results.append(as_tensor(transform(image)))
    assert torch.equal(*results)


def test_torchvisions_and_mmcvs_numbers_normalise_to_the_same():
    image = both()[0]
    small = Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])(ToTensor()(image))
    large = Normalize(
        [0.5 * 255, 0.4 * 255, 0.3 * 255], [0.2 * 255, 0.3 * 255, 0.4 * 255]
    )(image)
    assert torch.allclose(small, large, atol=1e-5)


def test_a_pipeline_is_built_from_names():
    pipeline = build_pipeline([{"type": "RandomCrop", "size": 4}, {"type": "ToTensor"}])
    assert pipeline(both()[1]).shape == (3, 4, 4)
    assert build_pipeline(None)(both()[1]).dtype == torch.float32
    assert Compose([lambda x: x + 1, lambda x: x * 2])(1) == 4


@pytest.mark.parametrize(
    ("make", "kind", "told"),
    [
        (lambda: RandomCrop(0), ConfigTypeError, "positive int"),
        (lambda: RandomCrop((1, 2, 3)), ConfigTypeError, "positive int"),
        (lambda: Normalize([0.5], [0.0]), ConfigError, "std above 0"),
        (lambda: Compose("ToTensor"), ConfigTypeError, "list of transforms, got str"),
        (lambda: Compose([3]), ConfigTypeError, "callable, got int 3"),
    ],
)
def test_bad_arguments_are_refused(make, kind, told):
    with pytest.raises(kind, match=told):
        make()


@pytest.mark.parametrize(
    ("transform", "told"),
    [
        (RandomCrop(25), r"of \(20, 30\) is smaller than \(25, 25\)"),
        (Normalize([0.5], [0.5]), "Normalize has 1 channels, the image has 3"),
    ],
)
def test_an_image_that_does_not_fit_is_told(transform, told):
    for image in both():
        with pytest.raises(DataError, match=told):
            transform(image)
