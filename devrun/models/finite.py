"""Whether what training changes in a model is finite."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from devrun.dist import gather_objects
from devrun.tensors import is_spread, local_of


def not_finite(model: nn.Module) -> str | None:
    """What of `model` has nan or infinite values, such as `parameter 'fc.bias'`.

    Looked at is what training changes: its parameters, and the running statistics of
    norm layers, which a bad batch spoils even where its update is left out.
    """
    params = list(model.parameters())
    spread = any(map(is_spread, params))
    named = [
        (f"parameter {name!r}", local_of(parameter.detach()))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and (parameter.is_floating_point() or parameter.is_complex())
    ]
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            for kind in ("running_mean", "running_var"):
                if (buffer := getattr(module, kind)) is not None:
                    named.append((f"buffer {f'{name}.{kind}'.lstrip('.')!r}", buffer))
    found = _first_bad(named) if named else None
    if spread:  # every process has some of each, and all must know
        found = next(filter(None, gather_objects(found)), None)
    return found


def _first_bad(named: list[tuple[str, Tensor]]) -> str | None:
    # a sum is finite only if all of it is, and takes one pass; it may overflow, though
    # (one transfer for all of them: each .item() would wait for the device)
    real = (torch.view_as_real(v) if v.is_complex() else v for _, v in named)
    sums = [value.sum(dtype=torch.float32) for value in real]
    if torch.isfinite(torch.stack(sums)).all():
        return None
    good = torch.stack([torch.isfinite(value).all() for _, value in named]).cpu()
    return next((name for (name, _), ok in zip(named, good) if not ok), None)
