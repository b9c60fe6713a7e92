"""What to write in place of what a Gaudi does slowly."""

from __future__ import annotations

import re
from collections.abc import Mapping

SYNC, WIDE, FROZEN = "host waits", "float64", "frozen"
_MASK = "multiply by the mask, or torch.where(mask, x, 0), which keeps the shape"
_KEEP = (
    "keep the tensor on the device; what is in log_vars is read at the log interval; "
    "sizes and indices stay on the host"
)
_ONCE = (
    "compute it from x.detach().cpu() once in many updates, and keep what it gave in a "
    "buffer"
)
_BY_NAME: Mapping[str, str] = {
    r"_?index(_put(_impl)?)?|masked_select|boolean index": _MASK,
    r"index by .*": "make the index on the device: device=x.device",
    r"nonzero(_static)?": "use the mask itself, or torch.where with three arguments",
    r"(_?unique|mode|nanmedian|segment_reduce).*": "do it on the host, in the data set "
    "or its collate_fn",
    r"bincount": "(x[:, None] == torch.arange(N, device=x.device)).sum(0), N being the "
    "number of classes",
    r"repeat_interleave": "give it output_size",
    r"item|_local_scalar_dense|tolist|numpy|print|pickle|save|copy.*": _KEEP,
    "branch": "torch.where(condition, a, b) in place of the branch",
    r"equal|allclose": "compare with (a == b).all() and keep the result on the device",
    r"synchronize": "leave it out: reading a value waits by itself",
    r"tri[ul]_indices": "compare two torch.arange, row >= column",
    r"_(functional_)?assert_async": "take the assert out of forward: nonfinite: stop "
    "checks the loss, and a hook can check the rest once in many updates",
    r"_amp_.*": "optimizer_config: {precision: bf16} in place of fp16, which needs "
    "loss scaling",
    r"batch_norm_(update_stats|backward)|_batch_norm_with_update": "use BatchNorm of "
    "each device, or GroupNorm",
    r"_fused_.*": "leave fused: true out of the optimizer: devrun takes the SDK's",
    r"_?linalg_(svd|eig|eigh|eigvals)|_linalg_(svd|eigh)": "use power iteration or "
    f"Newton-Schulz, which are products of matrices; or {_ONCE}",
    r"_?linalg_.*|_?cholesky.*|geqrf|ormqr|triangular_solve|lu_.*": "solve it by "
    f"products of matrices (Newton-Schulz, conjugate gradients); or {_ONCE}",
    r"_fft_.*|view_as_(real|complex)|angle": "keep real and imaginary parts apart; a "
    "transform is torch.matmul with its matrix, or is made in the data set",
    r"histc|_?histogram.*": "count by (x[:, None] == bins).sum(0), or leave it to a "
    "hook once in many updates",
    r"_embedding_bag.*": "use nn.Embedding and take the mean or sum of its rows",
    r"_to_sparse.*|_sparse_.*|to_mkldnn": "keep it dense and multiply by a mask of 0 "
    "and 1",
    r"im2col|col2im|unfold_backward": "use a convolution or slices in place of unfold "
    "and fold",
    r"_?(adaptive|fractional)_max_pool.*|max_unpool.*": "use max_pool or avg_pool with "
    "a fixed kernel, or adaptive_avg_pool",
    r"grid_sampler.*|_?upsample_.*": "use F.interpolate with mode nearest or bilinear, "
    "or resample in the data set",
    r"_?cdist.*|_pdist.*": "write it with products: (a*a).sum(-1)[:, None] - 2*a @ b.T "
    "+ (b*b).sum(-1)",
    r"renorm": "divide by the norm: x / x.norm(dim=1, keepdim=True).clamp(min=1)",
    r"_standard_gamma.*|_(sample_)?dirichlet.*|binomial|cauchy": "draw on the host, in "
    "the data set, and pass the numbers as inputs",
    r"_?(digamma|polygamma|igammac?|lgamma|i0|special_.*|gcd|lcm)": "use a series or a "
    "ratio of polynomials of it, or tabulate it in the data set",
    r"draws": "draw in the data set or its collate_fn, or with torch on the device",
    r"changes": "keep it in a buffer (register_buffer) that forward changes in place",
}
"""Pattern of the operator's whole name, without namespace and overload."""
GENERAL: Mapping[str, str] = {
    "on the host": "write it with operators that a Gaudi has, or do it in the data set",
    SYNC: _KEEP,
    WIDE: "a Gaudi computes it in float32: make it float32 where it begins "
    "(np.float32, dtype=torch.float32, .float())",
    "int64": "stay below 2**31, or compute it in the data set",
}
"""By kind of finding, where no pattern matches."""

MEANS: Mapping[str, tuple[str, str]] = {
    "on the host": (
        "slow",
        "a Gaudi has no kernel for it: the tensors go to the host and back",
    ),
    SYNC: ("slow", "the host waits for the device, which has nothing to do meanwhile"),
    WIDE: ("differs", "a Gaudi has no float64: the numbers are those of float32"),
    "int64": (
        "differs",
        "a Gaudi keeps 32 bits of whole numbers: larger ones wrap around",
    ),
    FROZEN: ("differs", "Python code in a graph runs once, while it is captured"),
}
"""By kind of finding, how grave it is and what happens there."""


def remedy_for(kind: str, what: str) -> str:
    """One line of advice for an operator or a cause."""
    name = what.split("::")[-1].split(".")[0]
    if kind in (WIDE, "int64"):
        return GENERAL[kind]
    for pattern, remedy in _BY_NAME.items():
        # an operator in place does the same as the one without the underscore
        if re.fullmatch(f"(?:{pattern})_?", name):
            return remedy
    return GENERAL[kind]
