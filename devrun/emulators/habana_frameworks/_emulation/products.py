"""Matrix products that torch leaves whole for a device with kernels for them.

Gaudi's bridge has `linear` and its backward as one kernel each; the host's torch takes
both apart. The arithmetic here is that of the parts, so the numbers stay the same.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def linear_backward(
    inputs: Tensor, grad: Tensor, weight: Tensor, mask: list[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of inputs (..., in), weight (out, in) and bias (out,), as `mask` asks.

    `grad`: (..., out).
    """
    flat = grad if grad.dim() == 2 else grad.reshape(-1, grad.shape[-1])
    to_inputs = to_weight = to_bias = None
    if mask[0]:
        to_inputs = flat.mm(weight)
        if grad.dim() != 2:
            to_inputs = to_inputs.view(inputs.shape)
    if mask[1]:
        rows = inputs if inputs.dim() == 2 else inputs.reshape(-1, inputs.shape[-1])
        to_weight = flat.t().mm(rows)
    if mask[2]:
        to_bias = flat.sum(0)
    return to_inputs, to_weight, to_bias


HOST_KERNELS: dict[str, Any] = {"aten::linear_backward": linear_backward}
"""By operator name: what runs on the host where its torch has no kernel."""
WHOLE = ("linear", "linear_backward")
"""What is registered for the device, so that torch does not take it apart."""
