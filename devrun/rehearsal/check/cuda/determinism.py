"""Operators that raise on CUDA where only deterministic algorithms are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from devrun.rehearsal.check.cuda.frames import line_asking
from devrun.rehearsal.check.cuda.watch import Judge, Op
from devrun.rehearsal.check.findings import Finding

_POOL = "a pooling of fixed windows: torch.nn.functional.avg_pool2d or max_pool2d"
_UPSAMPLE = "torch.nn.functional.interpolate(x, scale_factor=..., mode='nearest')"
_PAD = "torch.nn.functional.pad(x, pad, mode='replicate')"
_BACKWARD = {
    "avg_pool3d": "torch.nn.functional.max_pool3d",
    "_adaptive_avg_pool2d": "x.mean((2, 3)) for a size of 1, or " + _POOL,
    "_adaptive_avg_pool3d": "x.mean((2, 3, 4)) for a size of 1",
    "adaptive_max_pool2d": "x.amax((2, 3)) for a size of 1, or " + _POOL,
    "fractional_max_pool2d": _POOL,
    "fractional_max_pool3d": "torch.nn.functional.max_pool3d",
    "upsample_linear1d": _UPSAMPLE,
    "upsample_bicubic2d": _UPSAMPLE,
    "_upsample_bilinear2d_aa": _UPSAMPLE,
    "_upsample_bicubic2d_aa": _UPSAMPLE,
    "reflection_pad1d": _PAD,
    "reflection_pad2d": _PAD,
    "reflection_pad3d": _PAD,
    "_ctc_loss": "leave deterministic out: torch has no other CTC loss",
    "grid_sampler_2d": "leave deterministic out: torch has no other grid_sample",
    "grid_sampler_3d": "leave deterministic out: torch has no other grid_sample",
}
"""Forward operator, whose backward raises -> what to write instead."""
_FORWARD = {
    "max_unpool2d": _UPSAMPLE,
    "max_unpool3d": _UPSAMPLE,
    "nll_loss2d_forward": "cross entropy of x.flatten(2).transpose(1, 2).flatten(0, 1) "
    "and target.flatten()",
    "put_": "x.scatter_(0, index, values) on the flattened x",
    "histc": "torch.bucketize, and index_add_ of ones",
    "cumsum": "x @ torch.triu(torch.ones(n, n, device=x.device))",
    "median": "torch.quantile(x, 0.5, dim)",
}
"""Operators that raise themselves.

Both tables are the second list of `torch.use_deterministic_algorithms`, by the names
that are dispatched. Bilinear and trilinear interpolation are on that list, but have
had another way since (`torch.nn.functional.interpolate`)."""
_OTHERWISE = "leave deterministic out, or compute it another way"


class Determinism(Judge):
    """Notes those operators; a run on the CPU raises for none of them."""

    def __init__(self) -> None:
        self._sites: dict[str, str | None] = {}
        self._found: Counter[str] = Counter()

    def operator(self, op: Op) -> None:
        name = op.name
        forward = name.removesuffix("_backward")
        if forward != name and forward in _BACKWARD:
            self._found[forward] += 1
        elif name in _BACKWARD:
            self._sites.setdefault(name, line_asking())
        elif _raises(op):
            self._sites.setdefault(name, line_asking())
            self._found[name] += 1

    def findings(self, updates: int) -> Iterator[Finding]:
        for name, count in self._found.items():
            back = name in _BACKWARD
            yield Finding(
                severity="breaks",
                kind="not deterministic",
                what=name.strip("_"),
                why=f"deterministic: true, and its {'backward' if back else 'kernel'} "
                "has no such algorithm on CUDA: a RuntimeError",
                remedy=_BACKWARD.get(name) or _FORWARD.get(name, _OTHERWISE),
                site=self._sites.get(name),
                per_step=count / updates,
            )


def _raises(op: Op) -> bool:
    if op.name == "bincount":
        return len(op.inputs) > 1  # with weights
    if op.name == "_embedding_bag":
        return 2 in op.args[4:5]  # of mode max
    if op.name == "cumsum":
        return op.inputs[0].is_floating_point() or op.inputs[0].is_complex()
    if op.name == "median":
        return len(op.args) > 1  # with the indices
    if op.name in ("scatter_reduce", "scatter_reduce_"):
        return "prod" in op.args
    return op.name in _FORWARD
