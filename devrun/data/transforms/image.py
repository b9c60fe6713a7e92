"""What the transforms need of an image, the same for a tensor and for Pillow."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from devrun.errors import DataError


def size_of(image: Any) -> tuple[int, int]:
    """(height, width)."""
    if isinstance(image, Tensor):
        return image.shape[-2], image.shape[-1]
    if hasattr(image, "getbands"):  # Pillow, which need not be installed
        width, height = image.size
        return height, width
    raise DataError(
        f"an image is a tensor (C, H, W) or a Pillow image, got {type(image).__name__}"
    )


def as_tensor(image: Any) -> Tensor:
    """The pixels as a tensor (C, H, W) of the type they have, 0 to 255 from Pillow."""
    if isinstance(image, Tensor):
        return image
    size_of(image)
    pixels = np.array(image)  # a copy: what Pillow lends may not be written to
    if pixels.dtype == np.bool_:
        pixels = pixels.astype(np.uint8) * 255
    tensor = torch.from_numpy(pixels)
    if tensor.dim() == 2:
        return tensor.unsqueeze(0)
    return tensor.permute(2, 0, 1).contiguous()


def crop(image: Any, top: int, left: int, height: int, width: int) -> Any:
    if isinstance(image, Tensor):
        return image[..., top : top + height, left : left + width]
    return image.crop((left, top, left + width, top + height))


def flip(image: Any) -> Any:
    """Left becomes right."""
    if isinstance(image, Tensor):
        return image.flip(-1)
    from PIL import ImageOps

    return ImageOps.mirror(image)


def pad(image: Any, border: int, fill: int = 0) -> Any:
    if isinstance(image, Tensor):
        return F.pad(image, (border,) * 4, value=fill)
    from PIL import ImageOps

    return ImageOps.expand(image, border, fill)


def resize(image: Any, height: int, width: int) -> Any:
    """Bilinear, with the filter widened when shrinking, as Pillow does it."""
    if size_of(image) == (height, width):
        return image
    if not isinstance(image, Tensor):
        from PIL import Image

        return image.resize((width, height), Image.Resampling.BILINEAR)
    resized = F.interpolate(
        image.unsqueeze(0).float(), (height, width), mode="bilinear", antialias=True
    ).squeeze(0)
    if image.is_floating_point():
        return resized.to(image.dtype)
    return resized.round_().clamp_(0, 255).to(image.dtype)
