"""Transforms that change values: conversion, normalisation, colours."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from devrun.data.transforms import image as pixels
from devrun.errors import ConfigError, DataError
from devrun.registry import TRANSFORMS

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


@TRANSFORMS.register_module()
class ToTensor:
    """A float32 tensor (C, H, W); pixels of 0 to 255 become 0 to 1."""

    def __call__(self, image: Any) -> Tensor:
        tensor = pixels.as_tensor(image)
        if tensor.dtype == torch.uint8:
            return tensor.to(torch.float32).div_(255)
        return tensor.to(torch.float32)


@TRANSFORMS.register_module()
class Normalize:
    """`(image - mean) / std` per channel, in the units the image has.

    After `ToTensor` these are 0 to 1 (torchvision's numbers); on 8-bit pixels they
    are 0 to 255 (MMCV's numbers), and the result is a float32 tensor.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != len(std) or not all(value > 0 for value in std):
            raise ConfigError(
                "mean and std take one number per channel, std above 0, got "
                f"{mean!r} and {std!r}",
                key="std",
            )
        self.mean = torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1)
        self.std = torch.tensor(std, dtype=torch.float32).view(-1, 1, 1)

    def __call__(self, image: Any) -> Tensor:
        tensor = pixels.as_tensor(image)
        if tensor.shape[-3] != len(self.mean):
            raise DataError(
                f"Normalize has {len(self.mean)} channels, the image has "
                f"{tensor.shape[-3]}"
            )
        if tensor.device != self.mean.device:  # once: batches stay on one device
            self.mean = self.mean.to(tensor.device)
            self.std = self.std.to(tensor.device)
        return (tensor.to(torch.float32) - self.mean).div_(self.std)


@TRANSFORMS.register_module()
class ColorJitter:
    """Brightness, contrast and saturation, each times a draw from [1 - x, 1 + x].

    In this order; the result is a tensor, floats staying within 0 and 1.
    """

    def __init__(
        self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0
    ) -> None:
        strengths = {
            "brightness": brightness,
            "contrast": contrast,
            "saturation": saturation,
        }
        for name, value in strengths.items():
            if value < 0:
                raise ConfigError.of(name, f"must be 0 or more, got {value!r}")
        self.brightness, self.contrast = brightness, contrast
        self.saturation = saturation

    def __call__(self, image: Any) -> Tensor:
        tensor = pixels.as_tensor(image)
        top = 1.0 if tensor.is_floating_point() else 255.0
        values = tensor.to(torch.float32)
        if self.brightness:
            values = (values * _factor(self.brightness)).clamp_(0, top)
        if self.contrast:
            mean = _grey(values).mean()
            values = _blend(values, mean, _factor(self.contrast), top)
        if self.saturation:
            grey = _grey(values)
            values = _blend(values, grey, _factor(self.saturation), top)
        if tensor.is_floating_point():
            return values
        return values.round_().to(tensor.dtype)


def _factor(strength: float) -> float:
    return random.uniform(max(0.0, 1 - strength), 1 + strength)


def _grey(values: Tensor) -> Tensor:
    if values.shape[-3] != 3:
        return values
    weights = torch.tensor(_LUMA).view(3, 1, 1)
    return (values * weights).sum(-3, keepdim=True)


def _blend(values: Tensor, other: Tensor, factor: float, top: float) -> Tensor:
    return (values * factor + other * (1 - factor)).clamp_(0, top)
