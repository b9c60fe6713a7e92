"""How a rehearsal gets past what breaks: by leaving out the config's part of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from devrun.config.loader import DELETE
from devrun.errors import DevrunError, UnsupportedFeatureError, is_out_of_memory
from devrun.place import KeyPath, dotted
from devrun.probes import sites
from devrun.probes.finding import MISMATCH, Finding
from devrun.probes.hosted import MEANS, SPARSE
from devrun.text import joined

_NEEDED = ("model", "data", "loss", "runner")
"""Sections without which nothing can be tried."""
_DECIDES = ("type", "policy")
"""Keys without which the others of their section mean nothing."""
_OPTIMIZER = {"type": "SGD", "lr": 0.001, DELETE: True}
_MIXED = re.compile(
    r"Expected all tensors to be on the same device[^\n(]*"
    r"(?:\(operator aten::(\w+).*?\))?"
    r"|[^\n]*(?:must be on|not at) the same device[^\n]*"
)
_OWN_UPDATE = re.compile("several optimizers|cannot update the weights")
_ONE_UPDATE = (
    "train it on another device; here the one optimizer of the config makes the "
    "update, in the graph: return a single loss from train_step"
)
LESS = (
    "a smaller data.samples_per_gpu with optimizer_config.cumulative_iters to keep the "
    "batch, gradient_checkpointing, or optimizer_config.precision: bf16"
)


def refusal(error: Exception, seen: Collection[Any] = ()) -> Finding:
    """What `error` says, at the line of the config or of the user's code.

    Args:
        seen: keys of findings that there were; one that comes again takes its whole
            section along.
    """
    remedy = ""
    place = error.place if isinstance(error, DevrunError) else None
    if isinstance(error, DevrunError):
        why = joined(error.reason)
        if place is not None and place.path:
            what, kind = dotted(place.path), "config"
        else:
            what, kind = error.key or error.subject or type(error).__name__, "refused"
        site = str(place.origin) if place and place.origin else sites.of_error(error)
    else:
        what, kind = type(error).__name__, "raises"
        why = joined(f"{what}: {str(error).strip()}".partition("\n")[0])
        site = sites.of_error(error)
    if is_out_of_memory(error):
        kind, remedy = "memory", LESS
    if mixed := _MIXED.search(str(error)):  # as `Hosted` says it of other modes
        kind, what = MISMATCH, mixed[1] or what
        meaning, remedy = MEANS[kind]
        why = f"{meaning}: {mixed[0]}"
    elif SPARSE in str(error):
        kind, what, remedy = "sparse", "a sparse tensor", MEANS["sparse"][1]
    changes = around(place.path) if place else None
    if isinstance(error, UnsupportedFeatureError) and _OWN_UPDATE.search(why):
        changes, kind, remedy = None, "own update", _ONE_UPDATE
    if changes and ("breaks", kind, what, site) in seen:
        top = str(place.path[0]) if place else ""
        changes = None if top in _NEEDED else {top: None}
    remedy = remedy or _remedy(changes, why, isinstance(error, DevrunError), site)
    return Finding("breaks", kind, what, why, remedy, site, fix=changes)


def around(path: KeyPath) -> dict[str, Any] | None:
    """Changes that leave out what stands at `path`; None where it is needed."""
    top = path[0] if path else None
    if top is None or top in _NEEDED[:1] or path[:2] == ("data", "train"):
        return None
    if path[-1] in _DECIDES:
        path = path[:-1]
    if top == "optimizer":
        return {"optimizer": dict(_OPTIMIZER)}
    if path[:2] == ("data", "val"):
        return {"data.val": None}
    if top in (*_NEEDED, "device") and len(path) < 2:
        return None
    return {".".join(map(str, path[: _depth(path)])): None}


def apply(cfg: Any, changes: Mapping[str, Any]) -> None:
    """Carry out a `fix`: set its keys in `cfg`, and take out those that are None."""
    for key, value in changes.items():
        if value is not None:
            cfg.merge_from_dict({key: value})
            continue
        *parents, last = key.split(".")
        owner = cfg
        for part in parents:
            owner = owner[int(part) if isinstance(owner, list) else part]
        if isinstance(owner, list):
            owner[int(last)] = None  # the others keep their numbers
        else:
            owner.pop(last, None)


def _depth(path: KeyPath) -> int:
    """How much of `path` names the part that is left out: a hook, or one option."""
    for index, part in enumerate(path):
        if isinstance(part, int):
            return index + 1
    return min(len(path), 2)


def _remedy(
    changes: dict[str, Any] | None, why: str, refused: bool, site: str | None
) -> str:
    if changes is None and site is None and not refused:
        return "no line of yours is on the stack: devrun train --dry-run logs all of it"
    if changes is None:
        return why if refused else "mend the line that is named"
    (key, value), *_ = changes.items()
    if value is None:
        return f"remove {key} from the config for this device"
    items = ", ".join(f"{k}: {v}" for k, v in value.items() if k != DELETE)
    return f"{key}: {{{items}}}"
