"""Operators of vision models: torchvision's where they load, else in PyTorch.

A PyTorch form has gradients by autograd and runs on any device; `nms` alone, a loop
over values, goes through the host.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def compiled() -> Any:
    """`torchvision.ops`, where its compiled operators load with this torch."""
    try:
        there = import_module("torchvision.extension")._has_ops()
        return import_module("torchvision.ops") if there else None
    except (ImportError, RuntimeError):  # not here, or built for another torch
        return None


def nms(boxes: Tensor, scores: Tensor, *, iou_threshold: float, offset: int) -> Tensor:
    """Indices of the boxes that stay, best score first.

    Args:
        boxes: (N, 4): x1, y1, x2, y2.
        scores: (N,).
        offset: 1 where x2 and y2 are the last pixels of a box, else 0.
    """
    boxes = torch.cat([boxes[:, :2], boxes[:, 2:] + offset], 1)
    vision = compiled()
    if vision is not None:
        with contextlib.suppress(NotImplementedError):  # no kernel for that device
            return vision.nms(boxes, scores, iou_threshold)  # type: ignore[no-any-return]
    # A loop over values, which no compiled device can carry out.
    host, order = boxes.detach().cpu().float(), scores.detach().cpu()
    left = order.argsort(descending=True, stable=True)
    area = (host[:, 2:] - host[:, :2]).prod(1)
    kept = []
    while left.numel():
        first, left = left[0], left[1:]
        kept.append(first)
        low = torch.maximum(host[first, :2], host[left, :2])
        high = torch.minimum(host[first, 2:], host[left, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        left = left[shared <= iou_threshold * (area[first] + area[left] - shared)]
    found = torch.stack(kept) if kept else left
    return found.to(boxes.device)


def aligned(
    features: Tensor,
    rois: Tensor,
    size: tuple[int, int],
    scale: float,
    ratio: int,
    half_pixel: bool,
) -> Tensor:
    """RoIAlign with means: He et al., Mask R-CNN, https://arxiv.org/abs/1703.06870.

    Args:
        features: (N, C, H, W).
        rois: (K, 5): the index of the image, x1, y1, x2, y2.
        ratio: points of a bin in each direction; 0 takes one for each pixel.
        half_pixel: centers of pixels are at 0.5.

    Returns:
        (K, C, *size).
    """
    vision = compiled()
    if vision is not None:
        given = (features, rois, size, scale, ratio, half_pixel)
        return vision.roi_align(*given)  # type: ignore[no-any-return]
    found = features.new_zeros((len(rois), features.shape[1], *size))
    shift = 0.5 if half_pixel else 0.0
    start = rois[:, 1:3] * scale - shift
    extent = rois[:, 3:5] * scale - shift - start
    if not half_pixel:
        extent = extent.clamp(min=1)
    bins = torch.tensor(size[::-1], device=rois.device)
    points = (extent / bins).ceil().clamp(min=1).long()  # x, y
    if ratio > 0:
        points = torch.full_like(points, ratio)
    keys = torch.cat([rois[:, :1].long(), points], 1)
    for key in keys.unique(dim=0):
        image, *counts = key.tolist()
        chosen = (keys == key).all(1).nonzero()[:, 0]
        x, y = (
            start[chosen, axis, None]
            + extent[chosen, axis, None] * _centers(bins[axis] * count, rois)
            for axis, count in enumerate(counts)
        )
        values = _sampled(features[image : image + 1], x, y)
        found[chosen] = F.avg_pool2d(values, (counts[1], counts[0]))
    return found


def _centers(count: Any, like: Tensor) -> Tensor:
    """Centers of `count` equal parts of 0 to 1."""
    number = int(count)
    return (torch.arange(number, device=like.device, dtype=like.dtype) + 0.5) / number


def _sampled(features: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Values of (1, C, H, W) on K grids: x (K, X), y (K, Y) to (K, C, Y, X).

    Points up to a pixel outside have the value of the edge, those beyond zero.
    """
    height, width = features.shape[2:]
    inside = [(v >= -1) & (v <= n) for v, n in ((x, width), (y, height))]
    x, y = (
        2 * v.clamp(0, n - 1) / max(n - 1, 1) - 1 for v, n in ((x, width), (y, height))
    )
    shape = (len(x), y.shape[1], x.shape[1])
    grid = torch.stack([x[:, None].expand(shape), y[:, :, None].expand(shape)], -1)
    flat = grid.reshape(1, -1, shape[2], 2).to(features.dtype)
    values = F.grid_sample(features, flat, align_corners=True)[0]
    values = values.view(-1, *shape).transpose(0, 1)
    within = inside[0][:, None, None] & inside[1][:, None, :, None]
    return values * within.to(values.dtype)


def deformed(
    features: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    weight: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    parts: int,
) -> Tensor:
    """Deformable convolution: https://arxiv.org/abs/1703.06211, with `mask` its second
    version, https://arxiv.org/abs/1811.11168.

    Args:
        features: (N, C, H, W).
        offset: (N, G * kh * kw * 2, h, w): y and x of each point, of G groups.
        mask: (N, G * kh * kw, h, w), or None.
        weight: (c, C / groups, kh, kw).
        parts: G.
    """
    vision = compiled()
    if vision is not None:
        return vision.deform_conv2d(  # type: ignore[no-any-return]
            features, offset, weight, None, stride, padding, dilation, mask
        )
    count, _, high, wide = features.shape
    kernel = tuple(weight.shape[2:])
    taps, out = kernel[0] * kernel[1], tuple(offset.shape[2:])
    moved = offset.view(count, parts, *kernel, 2, *out)
    where = []
    for axis, shape in ((0, (-1, 1, 1, 1)), (1, (1, -1, 1, 1))):
        tap = torch.arange(kernel[axis], device=offset.device) * dilation[axis]
        start = torch.arange(out[axis], device=offset.device) * stride[axis]
        base = tap.view(shape) + start.view((-1, 1) if axis == 0 else (1, -1))
        where.append(moved[:, :, :, :, axis] + base - padding[axis])
    y, x = where
    grid = torch.stack([2 * (x + 0.5) / wide - 1, 2 * (y + 0.5) / high - 1], -1)
    values = F.grid_sample(  # zero outside, between pixels of the edge and outside less
        features.reshape(count * parts, -1, high, wide),
        grid.reshape(count * parts, taps * out[0], out[1], 2),
        align_corners=False,
    ).view(count, parts, -1, taps, *out)
    if mask is not None:
        values = values * mask.view(count, parts, 1, taps, *out)
    columns = values.reshape(count, groups, -1, *out).flatten(3)
    kernels = weight.reshape(groups, weight.shape[0] // groups, -1)
    return torch.einsum("gok,ngkp->ngop", kernels, columns).reshape(count, -1, *out)


def focal(
    logits: Tensor, target: Tensor, weight: Tensor, gamma: float, alpha: float
) -> Tensor:
    """(N, C) for logits (N, C) and classes (N,), C and more for none of them."""
    hit = target[:, None] == torch.arange(logits.shape[1], device=logits.device)
    signed = torch.where(hit, logits, -logits)
    share = torch.where(hit, alpha, 1 - alpha)
    loss = -share * torch.sigmoid(-signed) ** gamma * F.logsigmoid(signed)
    return loss * weight[target][:, None] if weight.numel() else loss
