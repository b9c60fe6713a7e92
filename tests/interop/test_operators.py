"""Operators in PyTorch that stand for MMCV's compiled ones, beside plain loops."""

from __future__ import annotations

import math

import pytest
import torch

from devrun.interop.operators import calls, forms

DOUBLE = {"dtype": torch.float64}


@pytest.fixture(autouse=True)
def in_pytorch(monkeypatch):
    """torchvision's own are not what is tried here."""
    monkeypatch.setattr(forms, "compiled", lambda: None)


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, **DOUBLE)


def between(image, y, x):
    """Bilinear value of (C, H, W), zero outside."""
    total = torch.zeros(image.shape[0], **DOUBLE)
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
                share = (1 - abs(y - row)) * (1 - abs(x - column))
                total += share * image[:, row, column]
    return total


def clamped(image, y, x):
    """Bilinear value; up to a pixel outside that of the edge, zero beyond."""
    height, width = image.shape[1:]
    if not (-1 <= y <= height and -1 <= x <= width):
        return torch.zeros(image.shape[0], **DOUBLE)
    return between(image, min(max(y, 0), height - 1), min(max(x, 0), width - 1))


def align_loop(features, rois, size, scale, ratio, half):
    out = torch.zeros(len(rois), features.shape[1], *size, **DOUBLE)
    shift = 0.5 if half else 0
    for k, (image, *box) in enumerate(rois.tolist()):
        x1, y1, x2, y2 = (v * scale - shift for v in box)
        w, h = (x2 - x1, y2 - y1) if half else (max(x2 - x1, 1), max(y2 - y1, 1))
        rows = ratio or math.ceil(h / size[0])
        columns = ratio or math.ceil(w / size[1])
        for i in range(size[0]):
            for j in range(size[1]):
                points = [
                    clamped(
                        features[int(image)],
                        y1 + (i + (a + 0.5) / rows) * h / size[0],
                        x1 + (j + (b + 0.5) / columns) * w / size[1],
                    )
                    for a in range(rows)
                    for b in range(columns)
                ]
                out[k, :, i, j] = torch.stack(points).mean(0)
    return out


ROIS = torch.tensor(
    [[0, 1.0, 2, 30, 40], [1, -9, 0, 70, 20], [1, 10, 10, 11, 11], [0, 3, 4, 5, 60]],
    **DOUBLE,
)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("half", [True, False])
def test_roi_align(ratio, half):
    features = draw(2, 3, 8, 10)
    options = ((3, 2), 0.25, ratio, half)
    found = forms.aligned(features, ROIS, *options)
    torch.testing.assert_close(found, align_loop(features, ROIS, *options))


def test_roi_align_gives_the_gradient_of_its_linear_map():
    features = draw(2, 3, 8, 10)
    names = ("aligned_height", "aligned_width", "spatial_scale", "sampling_ratio")
    options = dict(zip(names, (3, 2, 0.25, 0), strict=True))
    options.update(pool_mode=1, aligned=True)
    out = torch.zeros(4, 3, 3, 2, **DOUBLE)
    none = torch.zeros(0)
    calls.roi_align_forward(features, ROIS, out, none, none, **options)
    grad, result = draw(*out.shape, seed=1), torch.zeros_like(features)
    calls.roi_align_backward(grad, ROIS, none, none, result, **options)
    torch.testing.assert_close((grad * out).sum(), (result * features).sum())


def test_roi_pool_takes_the_largest_and_sends_the_gradient_there():
    features = draw(2, 3, 8, 10)
    out = torch.zeros(4, 3, 2, 2, **DOUBLE)
    argmax = torch.zeros(out.shape, dtype=torch.int)
    size = {"pooled_height": 2, "pooled_width": 2, "spatial_scale": 0.25}
    calls.roi_pool_forward(features, ROIS, out, argmax, **size)
    # x 0.25 to 7.5 and y 0.5 to 10 are pixels 0 to 8 and 1 to 10, of which 8 are there
    torch.testing.assert_close(out[0, :, 0, 0], features[0, :, 1:6, 0:5].amax((1, 2)))
    result = torch.zeros_like(features)
    calls.roi_pool_backward(torch.ones_like(out), ROIS, argmax, result, **size)
    torch.testing.assert_close((result * features).sum(), out.sum())


def options_of(long):
    names = (
        ("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w")
        if long
        else ("dH", "dW", "padH", "padW", "dilationH", "dilationW")
    )
    values = dict(zip(names, (2, 1, 1, 0, 1, 2), strict=True))
    return {**values, "group": 2, "deformable_group": 2}


def deform_loop(features, offset, mask, weight):
    count, channels = features.shape[:2]
    out = torch.zeros(count, weight.shape[0], *offset.shape[2:], **DOUBLE)
    for n, i, j in torch.cartesian_prod(*map(torch.arange, (count, *out.shape[2:]))):
        for a, b, part in torch.cartesian_prod(*map(torch.arange, (3, 3, 2))):
            k = part * 9 + a * 3 + b
            y = i * 2 - 1 + a + offset[n, 2 * k, i, j]
            x = j + b * 2 + offset[n, 2 * k + 1, i, j]
            # one group of weights for each of the offsets
            image = features[n].view(2, channels // 2, *features.shape[2:])[part]
            value = between(image, y.item(), x.item()) * mask[n, k, i, j]
            out[n].view(2, -1, *out.shape[2:])[part, :, i, j] += (
                weight.view(2, -1, *weight.shape[1:])[part, :, :, a, b] @ value
            )
    return out


def deformable():
    features, weight = draw(2, 4, 5, 6), draw(6, 2, 3, 3, seed=1)
    offset, mask = draw(2, 36, 3, 2, seed=2), draw(2, 18, 3, 2, seed=3).sigmoid()
    return features, weight, offset, mask


def test_deformable_convolution():
    features, weight, offset, mask = deformable()
    out = torch.zeros(2, 6, 3, 2, **DOUBLE)
    calls.deform_conv_forward(features, weight, offset, out, **options_of(False))
    plain = deform_loop(features, offset, torch.ones_like(mask), weight)
    torch.testing.assert_close(out, plain)
    bias, none = draw(6, seed=4), torch.zeros(0)
    given = (features, weight, bias, none, offset, mask)
    calls.modulated_deform_conv_forward(
        *given, out, none, with_bias=True, kernel_h=3, kernel_w=3, **options_of(True)
    )
    modulated = deform_loop(features, offset, mask, weight) + bias.view(-1, 1, 1)
    torch.testing.assert_close(out, modulated)


def test_gradients_of_deformable_convolution():
    features, weight, offset, mask = deformable()
    steps = ((2, 1), (1, 0), (1, 2), 2, 2)
    inputs = [v.requires_grad_() for v in (features, offset, mask, weight)]
    out = forms.deformed(*inputs, *steps)
    grad = draw(*out.shape, seed=5)
    want = torch.autograd.grad(out, inputs, grad)
    features, offset, mask, weight = (v.detach() for v in inputs)
    none, bias = torch.zeros(0), torch.zeros(6, **DOUBLE)
    found = [torch.zeros_like(v) for v in (features, weight, bias, offset, mask)]
    given = (features, weight, bias, none, offset, mask, none, *found, grad)
    calls.modulated_deform_conv_backward(*given, with_bias=True, **options_of(True))
    for index, value in zip((0, 3, 4, 1), want, strict=True):
        torch.testing.assert_close(found[index], value)
    torch.testing.assert_close(found[2], grad.sum((0, 2, 3)))


def test_nms_keeps_the_best_of_those_that_overlap():
    boxes = [[0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30], [0, 0, 10, 10.5]]
    scores = torch.tensor([0.5, 0.9, 0.1, 0.7])
    found = forms.nms(torch.tensor(boxes), scores, iou_threshold=0.5, offset=0)
    assert found.tolist() == [1, 2]
    found = forms.nms(torch.tensor(boxes), scores, iou_threshold=0.7, offset=0)
    assert found.tolist() == [1, 0, 2]
    none = forms.nms(torch.zeros(0, 4), torch.zeros(0), iou_threshold=0.5, offset=1)
    assert none.tolist() == []


def test_focal_loss_and_its_gradient():
    logits, target = draw(5, 4), torch.tensor([0, 3, 4, 1, 2])
    out, none = torch.zeros_like(logits), torch.zeros(0)
    calls.sigmoid_focal_loss_forward(logits, target, none, out, gamma=2.0, alpha=0.25)
    p = logits.sigmoid()
    hit = torch.nn.functional.one_hot(target, 5)[:, :4].bool()
    want = torch.where(
        hit, -0.25 * (1 - p) ** 2 * p.log(), -0.75 * p**2 * (1 - p).log()
    )
    torch.testing.assert_close(out, want)
    result, step = torch.zeros_like(logits), 1e-6
    calls.sigmoid_focal_loss_backward(
        logits, target, none, result, gamma=2.0, alpha=0.25
    )
    moved = forms.focal(logits + step, target, none, 2.0, 0.25)
    torch.testing.assert_close(result, (moved - out) / step, rtol=1e-4, atol=1e-5)
