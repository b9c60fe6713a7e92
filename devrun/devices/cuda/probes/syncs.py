"""Lines at which the host waits for the device, once an update or more often."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from traceback import walk_stack
from typing import Any

import torch

from devrun.devices.cuda.probes.watch import OF_LISTS, Judge, Op
from devrun.probes.finding import Finding
from devrun.probes.origins import Origins
from devrun.probes.sites import asking, is_library

_DISTRIBUTION = torch.distributions.distribution.__file__
_READ = (
    "keep it a tensor: x.detach() in place of x.item(); devrun reads what is in "
    "log_vars at the log interval"
)
_BRANCH = "torch.where(condition, a, b) in place of the branch"
_MASK = "torch.where(mask, x, 0) and a sum over mask, of the shape of x"
_SIZES = "keep sizes and indices on the host"
_MADE = (
    "make it there, as torch.zeros(..., device=x.device); what stays the same is a "
    "buffer of the model (register_buffer)"
)
_LABELS = {
    "item": (".item()", _READ),
    "tolist": (".tolist()", _READ),
    "cpu": (".cpu()", _READ),
    "__float__": ("float()", _READ),
    "__int__": ("int()", _READ),
    "__bool__": ("if or bool()", _BRANCH),
    "is_nonzero": ("if or bool()", _BRANCH),
    "__repr__": ("print", _READ),
    "__str__": ("print", _READ),
    "to": (".to('cpu')", _READ),
    "copy": ("copy to the device", _MADE),
    "type": (".type(torch....Tensor)", "x.to(torch.float32) or another dtype"),
    "__index__": ("a tensor as index or size", _SIZES),
    "__getitem__": ("x[:n] of a tensor n", _SIZES),
    "__format__": ("format or f-string", _READ),
    "one_hot": ("one_hot", "torch.nn.functional.one_hot(x, num_classes=N)"),
    "save": ("torch.save", "if self.every_n_iters(runner, 500): before it"),
    "synchronize": ("torch.cuda.synchronize", "leave it out; log_config has the time"),
    "empty_cache": (
        "torch.cuda.empty_cache",
        "leave it out: all is asked for again",
    ),
    **dict.fromkeys(OF_LISTS, ("torch.tensor of tensors", "torch.stack(list)")),
}
"""Call -> its name for a reader, and what to do."""
_CHECKED = (
    "arguments of a distribution",
    "validate_args=False where it is made: True has the values looked at",
)
_UNIQUE = "sort, and compare with the element before: a shape that no value changes"
_PRODUCTS = ("mm", "addmm", "_sparse_addmm")
_REMEDIES = {
    "_local_scalar_dense": _READ,
    "nonzero": _MASK,
    "masked_select": _MASK,
    "index": _MASK,
    "_to_sparse": "keep it dense, or make its indices once, on the host",
    "index_put_": "torch.where(mask, value, x) in place of x[mask] = value",
    "bincount": "torch.zeros(N, device=x.device).index_add_(0, x, weights)",
    "repeat_interleave": "give repeat_interleave its output_size=",
    "normal": "mean + std * torch.randn_like(std)",
    "equal": "(a == b).all(), read at the log interval",
    "allclose": "torch.isclose(a, b).all(), read at the log interval",
    **dict.fromkeys(
        _PRODUCTS, "adj.coalesce() of a sparse one, once, where it is made"
    ),
    **dict.fromkeys(("masked_fill", "masked_fill_"), "torch.where(mask, value, x)"),
    **dict.fromkeys(("index_fill", "index_fill_"), "index_copy with value.expand(...)"),
    "_ctc_loss": "lengths as tuples of ints, or that no batch takes to the device",
    "_linalg_check_errors": "torch.linalg's function with the ending _ex",
    **dict.fromkeys(
        ("_linalg_eigh", "linalg_eig", "linalg_eigvals", "_linalg_svd", "linalg_pinv"),
        "once in many updates, and keep what it gave in a buffer",
    ),
    **dict.fromkeys(
        ("_unique", "_unique2", "unique_dim", "unique_consecutive"), _UNIQUE
    ),
}
"""Operator that waits, where it is given a tensor of the device -> what to do."""
KIND = "host sync"
_WHY = "the host waits here until the GPU has done all that was queued"


def clipping(site: str | None) -> Finding:
    """That of a config which has every norm of the gradients looked at."""
    remedy = "leave it out: nonfinite: stop looks at the norms at the log interval"
    return Finding("slow", KIND, "error_if_nonfinite", _WHY, remedy, site, per_step=1)


class Syncs(Judge):
    """Counts what of the user's makes the host wait, while an update is done."""

    def __init__(self, origins: Origins, updating: Callable[[], int]) -> None:
        super().__init__()
        self._origins, self._updating = origins, updating
        self._seen: defaultdict[Any, set[int]] = defaultdict(set)
        """Numbers of the updates in which each waited."""

    def operator(self, op: Op) -> None:
        if self._updating() and self._waits(op):
            self._note(*self._words(op))

    def _words(self, op: Op) -> tuple[str, str]:
        if op.indexes and not self._masked(op):
            return _LABELS["copy"]
        if op.name == "copy_":
            there = self._origins.once_mended(op.inputs[0])
            return _LABELS["copy"] if there else ("copy to the host", _READ)
        usual = (op.call.strip("_") or op.name, _REMEDIES.get(op.name, _UNIQUE))
        if op.indexes:
            return "x[mask]", usual[1]
        if op.call == "where":
            usual = ("where(condition)", _MASK)
        if op.call == "backward" and op.name != "_local_scalar_dense":
            return op.name, usual[1]
        return _LABELS.get(op.call, usual)

    def leaves(self, call: str) -> None:
        if self._updating() and call in _LABELS:
            self._note(*_LABELS[call])

    def findings(self, updates: int) -> Iterator[Finding]:
        """Of the lines that waited in two updates running, or in every second one; of
        a shape that values decide, as no log asks for, also once behind the first."""
        for found in super().findings(updates):
            seen, shape = self._seen[found.key], found.remedy in _REMEDIES.values()
            often = any(n + 1 in seen or {n + 2, n + 4} <= seen for n in seen)
            if often or (shape and found.remedy != _READ and max(seen) > 1):
                yield found

    def _note(self, label: str, remedy: str) -> None:
        frame = asking()
        if frame is None or is_library(frame.f_code.co_filename):
            return  # it is not the user's to change
        files = (one.f_code.co_filename for one, _ in walk_stack(None))
        if label == _LABELS["__bool__"][0] and _DISTRIBUTION in files:
            label, remedy = _CHECKED
        site = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        row = ("slow", KIND, label, _WHY, remedy, site)
        self.counts[row] += 1
        self._seen[Finding(*row).key].add(self._updating())

    def _waits(self, op: Op) -> bool:
        if op.indexes:
            whole = (one for one in op.indexes if one.dim())
            return self._masked(op) or any(map(self._origins.stays, whole))
        if op.name == "repeat_interleave":
            return op.kwargs.get("output_size") is None
        if op.name == "normal":  # it looks for a deviation below 0
            return any(map(self._origins.on_device, op.args[1:2]))
        if op.name.strip("_") in ("masked_fill", "index_fill"):
            return self._origins.on_device(op.args[-1])  # a number of the device
        if op.name == "_ctc_loss":  # but cuDNN's, which takes targets of 32 bits
            lengths = map(self._origins.on_device, op.args[2:4])
            return op.args[1].dtype != torch.int32 and any(lengths)
        if op.name == "histc":
            return op.args[2:4] in ((), (0, 0))
        if op.name in _PRODUCTS:
            return any(one.is_sparse and not one.is_coalesced() for one in op.inputs)
        if op.name == "copy_":  # from the one to the other
            mine, given = op.inputs[:2]
            if self._origins.once_mended(mine):
                return bool(self._origins.stays(given)) and op.args[2:3] != (True,)
            return bool(self._origins.stays(mine)) and self._origins.on_device(given)
        return op.name in _REMEDIES and self._origins.once_mended(op.inputs[0])

    def _masked(self, op: Op) -> bool:
        """Whether a mask of the device is made an index of."""
        kinds = (torch.bool, torch.uint8)
        masks = [one for one in op.indexes if one.dtype in kinds]
        return not all(map(self._origins.stays, masks)) and not self._fills(op)

    def _fills(self, op: Op) -> bool:
        """Whether one number from the host is put under the mask: no index is made."""
        value: Any = op.args[2] if op.name != "index" else None
        one = value is not None and value.numel() == 1
        return one and not self._origins.on_device(value)
