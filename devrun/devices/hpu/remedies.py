"""What to write in place of what a Gaudi does slowly."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["remedy_for"]

_MASK = "multiply by the mask, or torch.where(mask, x, 0), which keeps the shape"
_KEEP = "keep the tensor on the device; return it in log_vars to have it logged"
_BY_WORD: Mapping[str, str] = {
    "index": _MASK,
    "masked_select": _MASK,
    "nonzero": "use the mask itself, or torch.where with three arguments",
    "unique": "do it on the host, in the data set or its collate_fn",
    "repeat_interleave": "give it output_size",
    "item": _KEEP,
    "copy": _KEEP,
    "equal": "compare with (a == b).all() and keep the result on the device",
    "synchronize": "leave it out: reading a value waits by itself",
    "triu_indices": "compare two torch.arange, row >= column",
    "tril_indices": "compare two torch.arange, row >= column",
    "amp_": "train in bf16, which needs no loss scaling",
    "batch_norm_update_stats": "use BatchNorm of each device, or GroupNorm",
    "batch": "pad the batches to few lengths: data.train_dataloader.buckets; "
    "a short last batch: last_batch: pad or drop",
}
_OTHERWISE: Mapping[str, str] = {
    "on the host": "write it with operators that a Gaudi has, or do it in the data set",
    "host waits": _KEEP,
    "graph break": "write it so that it can be traced: no prints, no branches on "
    "values; or take it out of the compiled module",
    "compiled again": "keep shapes the same from update to update, and numbers that "
    "change in tensors",
}


def remedy_for(kind: str, what: str) -> str:
    """One line of advice for an operator or a cause."""
    name = what.split("::")[-1]
    if kind in ("compiled again", "graph break") and name != "batch":
        return _OTHERWISE[kind]
    for word, remedy in _BY_WORD.items():
        if word in name:
            return remedy
    return _OTHERWISE[kind]
