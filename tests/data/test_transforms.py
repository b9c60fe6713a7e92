"""Transforms give the same on a tensor and on a Pillow image."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from devrun.data.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
    as_tensor,
    build_pipeline,
)
from devrun.errors import ConfigError, ConfigTypeError, DataError

Image = pytest.importorskip("PIL.Image")

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def both() -> tuple[torch.Tensor, Any]:
    """One picture of 20 x 30 as a tensor (3, 20, 30) and as a Pillow image."""
    return torch.from_numpy(PIXELS).permute(2, 0, 1), Image.fromarray(PIXELS)


@pytest.mark.parametrize(
    "transform",
    [
        ToTensor(),
        CenterCrop(8),
        CenterCrop((10, 12)),
        RandomCrop(16),
        RandomCrop(24, padding=4),
        RandomHorizontalFlip(1.0),
        Normalize([100.0, 110.0, 120.0], [50.0, 60.0, 70.0]),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_tensor_and_pillow_agree(transform: Any) -> None:
    results = []
    for image in both():
        random.seed(5)
        results.append(as_tensor(transform(image)))
    assert torch.equal(*results)


@pytest.mark.parametrize("size", [(10, 15), (40, 50), 10])
def test_resizing_agrees_within_rounding(size: Any) -> None:
    one, other = (as_tensor(Resize(size)(image)) for image in both())
    assert one.dtype == other.dtype == torch.uint8
    assert (one.int() - other.int()).abs().max() <= 1


def published_resize(height: int, width: int, edge: int) -> tuple[int, int]:
    """Of torchvision (`Resize(edge)`) and MMClassification (`size=(edge, -1)`)."""
    if width < height:
        return int(edge * height / width), edge
    return edge, int(edge * width / height)


@pytest.mark.parametrize("height", [7, 20, 33, 64])
def test_the_longer_edge_and_the_middle_are_those_of_the_published_recipes(
    height: int,
) -> None:
    for width in range(7, 70):
        image = torch.arange(height * width).view(1, height, width)
        small = Resize((11, -1))(image.to(torch.uint8))
        assert small.shape[1:] == published_resize(height, width, 11)
        top, left = round((height - 5) / 2), round((width - 6) / 2)
        assert CenterCrop((5, 6))(image)[0, 0, 0] == top * width + left


def test_the_inception_crop_keeps_to_area_and_ratio() -> None:
    crop = RandomResizedCrop(8)
    for _ in range(300):
        top, left, height, width = crop._draw(100, 200)
        assert 0 <= top <= 100 - height
        assert 0 <= left <= 200 - width
        assert 0.07 < height * width / 20_000 <= 1.0
        assert 0.7 < width / height < 1.4
    assert crop(both()[0]).shape == (3, 8, 8)


def test_an_image_that_no_draw_fits_gives_its_middle() -> None:
    crop = RandomResizedCrop(4, scale=(1.0, 1.0))
    assert crop._draw(10, 100) == (0, 43, 10, 13)
    assert crop._draw(100, 10) == (43, 0, 13, 10)


def test_torchvisions_and_mmcvs_numbers_normalise_to_the_same() -> None:
    image = both()[0]
    small = Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4])(ToTensor()(image))
    large = Normalize(
        [0.5 * 255, 0.4 * 255, 0.3 * 255], [0.2 * 255, 0.3 * 255, 0.4 * 255]
    )(image)
    assert torch.allclose(small, large, atol=1e-5)


def test_a_pipeline_is_built_from_names() -> None:
    pipeline = build_pipeline([{"type": "CenterCrop", "size": 4}, {"type": "ToTensor"}])
    assert pipeline(both()[1]).shape == (3, 4, 4)
    assert build_pipeline(None)(both()[1]).dtype == torch.float32
    assert Compose([lambda x: x + 1, lambda x: x * 2])(1) == 4


@pytest.mark.parametrize(
    ("make", "kind", "told"),
    [
        (lambda: CenterCrop(0), ConfigTypeError, "positive int"),
        (lambda: Resize((1, 2, 3)), ConfigTypeError, "positive int"),
        (lambda: Normalize([0.5], [0.0]), ConfigError, "std above 0"),
        (lambda: Compose("ToTensor"), ConfigTypeError, "list of transforms, got str"),
        (lambda: Compose([3]), ConfigTypeError, "callable, got int 3"),
    ],
)
def test_bad_arguments_are_refused(make: Any, kind: type, told: str) -> None:
    with pytest.raises(kind, match=told):
        make()


@pytest.mark.parametrize(
    ("transform", "told"),
    [
        (CenterCrop(25), "20 x 30 is smaller than 25 x 25"),
        (Normalize([0.5], [0.5]), "Normalize has 1 channels, the image has 3"),
    ],
)
def test_an_image_that_does_not_fit_is_told(transform: Any, told: str) -> None:
    for image in both():
        with pytest.raises(DataError, match=told):
            transform(image)
