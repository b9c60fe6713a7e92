"""Operators with the names and arguments of `mmcv._ext`, which write into tensors.

Backward passes compute the operator again and have autograd differentiate it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from devrun.errors import UnsupportedFeatureError
from devrun.interop.operators.forms import aligned, deformed, focal, nms


def refusal(name: str) -> UnsupportedFeatureError:
    version = str(getattr(sys.modules.get("mmcv"), "__version__", ""))
    whole = "mmcv-full 1.7" if version.startswith("1.") else "mmcv 2.1"
    return UnsupportedFeatureError(
        f"{name} is one of MMCV's compiled operators, which this mmcv {version} does "
        f"not have: install {whole} for this torch, or take a model without it"
    )


def _gradients(
    make: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    grad: Tensor,
    results: tuple[Tensor, ...],
) -> None:
    """Write gradients of `make(*inputs)`, which is computed again, to `results`."""
    with torch.enable_grad():
        inputs = tuple(value.detach().requires_grad_() for value in inputs)
        found = torch.autograd.grad(make(*inputs), inputs, grad)
    for result, gradient in zip(results, found, strict=True):
        result.copy_(gradient)


def _align_options(options: dict[str, Any]) -> tuple[Any, ...]:
    if options["pool_mode"] != 1:
        raise refusal("roi_align with pool_mode='max'")
    size = options["aligned_height"], options["aligned_width"]
    ratio = options["sampling_ratio"]
    return size, options["spatial_scale"], ratio, options["aligned"]


def roi_align_forward(
    features: Tensor, rois: Tensor, output: Tensor, *argmax: Tensor, **options: Any
) -> None:
    output.copy_(aligned(features, rois, *_align_options(options)))


def roi_align_backward(
    grad: Tensor, rois: Tensor, y: Tensor, x: Tensor, result: Tensor, **options: Any
) -> None:
    given = _align_options(options)  # linear: the values of the features do not count
    _gradients(lambda f: aligned(f, rois, *given), (result,), grad, (result,))


def roi_pool_forward(
    features: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax: Tensor,
    *,
    pooled_height: int,
    pooled_width: int,
    spatial_scale: float,
) -> None:
    """The largest value of each bin, 0 for a bin outside of the map; `argmax` is its
    index in the map, -1 for none: Girshick, https://arxiv.org/abs/1504.08083."""
    height, width = features.shape[2:]
    for number, roi in enumerate(rois.tolist()):
        left, top, right, bottom = (int(v * spatial_scale + 0.5) for v in roi[1:])
        right, bottom = max(right, left), max(bottom, top)
        rows = torch.arange(top, bottom + 1, device=features.device)
        columns = torch.arange(left, right + 1, device=features.device)
        y, x = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
        outside = (rows != y)[:, None] | (columns != x)[None]
        part = features[int(roi[0])][:, y[:, None], x[None]]
        part = part.masked_fill(outside, -torch.inf)
        value, index = F.adaptive_max_pool2d(
            part[None], (pooled_height, pooled_width), return_indices=True
        )
        place = (y[:, None] * width + x[None]).flatten()[index]
        none = value.isinf()
        output[number] = value.masked_fill(none, 0)[0]
        argmax[number] = place.masked_fill(none, -1)[0].to(argmax.dtype)


def roi_pool_backward(
    grad: Tensor, rois: Tensor, argmax: Tensor, result: Tensor, **_: Any
) -> None:
    for number, image in enumerate(rois[:, 0].long().tolist()):
        places = argmax[number].flatten(1).long()
        values = grad[number].flatten(1) * (places >= 0)
        result[image].view(len(places), -1).scatter_add_(1, places.clamp(min=0), values)


def _steps(options: dict[str, Any]) -> tuple[Any, ...]:
    """Stride, padding, dilation, groups, groups of offsets, by either's names."""
    long = "stride_h" in options
    words = ("stride_", "pad_", "dilation_") if long else ("d", "pad", "dilation")
    high, wide = "hw" if long else "HW"
    sizes = ((options[word + high], options[word + wide]) for word in words)
    return (*sizes, options.get("group", 1), options.get("deformable_group", 1))


def deform_conv_forward(
    features: Tensor,
    weight: Tensor,
    offset: Tensor,
    output: Tensor,
    *_: Tensor,
    **options: Any,
) -> None:
    output.copy_(deformed(features, offset, None, weight, *_steps(options)))


def deform_conv_backward_input(
    features: Tensor,
    offset: Tensor,
    grad: Tensor,
    of_features: Tensor,
    of_offset: Tensor,
    weight: Tensor,
    *_: Tensor,
    **options: Any,
) -> None:
    _gradients(
        lambda f, o: deformed(f, o, None, weight, *_steps(options)),
        (features, offset),
        grad,
        (of_features, of_offset),
    )


def deform_conv_backward_parameters(
    features: Tensor,
    offset: Tensor,
    grad: Tensor,
    of_weight: Tensor,
    *_: Tensor,
    scale: float,
    **options: Any,
) -> None:
    found = torch.zeros_like(of_weight)  # at 0, as it is linear
    steps = _steps(options)
    _gradients(
        lambda w: deformed(features, offset, None, w, *steps), (found,), grad, (found,)
    )
    of_weight.add_(found, alpha=scale)


def modulated_deform_conv_forward(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    output: Tensor,
    *_: Any,
    with_bias: bool,
    **options: Any,
) -> None:
    output.copy_(deformed(features, offset, mask, weight, *_steps(options)))
    if with_bias:
        output.add_(bias.view(-1, 1, 1))


def modulated_deform_conv_backward(
    features: Tensor,
    weight: Tensor,
    bias: Tensor,
    ones: Tensor,
    offset: Tensor,
    mask: Tensor,
    columns: Tensor,
    of_features: Tensor,
    of_weight: Tensor,
    of_bias: Tensor,
    of_offset: Tensor,
    of_mask: Tensor,
    grad: Tensor,
    *_: Any,
    with_bias: bool,
    **options: Any,
) -> None:
    _gradients(
        lambda f, o, m, w: deformed(f, o, m, w, *_steps(options)),
        (features, offset, mask, weight),
        grad,
        (of_features, of_offset, of_mask, of_weight),
    )
    if with_bias:
        of_bias.copy_(grad.sum((0, 2, 3)))


def sigmoid_focal_loss_forward(
    logits: Tensor, target: Tensor, weight: Tensor, output: Tensor, **options: float
) -> None:
    output.copy_(focal(logits, target, weight, **options))


def sigmoid_focal_loss_backward(
    logits: Tensor, target: Tensor, weight: Tensor, result: Tensor, **options: float
) -> None:
    ones = torch.ones_like(logits)
    _gradients(
        lambda v: focal(v, target, weight, **options), (logits,), ones, (result,)
    )


def _attended(value: Tensor, shapes: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    form = import_module("mmcv.ops.multi_scale_deform_attn")
    make = form.multi_scale_deformable_attn_pytorch
    return make(value, shapes, places, weights)  # type: ignore[no-any-return]


def ms_deform_attn_forward(
    value: Tensor,
    shapes: Tensor,
    starts: Tensor,
    places: Tensor,
    weights: Tensor,
    **_: Any,
) -> Tensor:
    return _attended(value, shapes, places, weights)


def ms_deform_attn_backward(
    value: Tensor,
    shapes: Tensor,
    starts: Tensor,
    places: Tensor,
    weights: Tensor,
    grad: Tensor,
    *results: Tensor,
    **_: Any,
) -> None:
    given = (value, places, weights)
    _gradients(lambda v, p, w: _attended(v, shapes, p, w), given, grad, results)


OPERATORS = {
    function.__name__: function
    for function in (
        nms,
        roi_align_forward,
        roi_align_backward,
        roi_pool_forward,
        roi_pool_backward,
        deform_conv_forward,
        deform_conv_backward_input,
        deform_conv_backward_parameters,
        modulated_deform_conv_forward,
        modulated_deform_conv_backward,
        sigmoid_focal_loss_forward,
        sigmoid_focal_loss_backward,
        ms_deform_attn_forward,
        ms_deform_attn_backward,
    )
}
