"""`load_state_dict`: load what fits, and report what does not on one line."""

from __future__ import annotations

import json
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from devrun.errors import CheckpointError

_LOGGER = logging.getLogger("devrun.checkpoint")
_SHOWN = 10
WRAPPED = "module."
"""What DataParallel and DistributedDataParallel put before every key."""


def load_state_dict(
    module: nn.Module,
    state_dict: Mapping[str, Any],
    strict: bool = False,
    logger: logging.Logger | None = None,
    *,
    source: str = "the state_dict",
) -> None:
    """Load what fits of `state_dict` and log, in one record, what does not.

    Raises:
        CheckpointError: nothing fits, or `strict` and not everything does.
    """
    own = set(module.state_dict())
    state_dict = _wrapped_like(own, state_dict)
    missing, unexpected, refused = _load(module, state_dict)
    missing = [key for key in missing if not key.endswith("num_batches_tracked")]
    if not (missing or unexpected or refused):
        (logger or _LOGGER).info("loaded all %d tensors of %s", len(own), source)
        return
    report = f"{source} does not fit {type(module).__name__}: " + "; ".join(
        f"{len(names)} {what}: {_listed(names)}"
        for what, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("that do not fit", refused),
        )
        if names
    )
    mis_shaped = {entry.split(" ", 1)[0] for entry in refused}
    matched = (own & state_dict.keys()) - mis_shaped - set(missing)
    if own and not matched:
        raise CheckpointError(
            f"nothing in {source} fits {type(module).__name__}"
            f"{_advice(own, state_dict)}; {report}"
        )
    if strict:
        raise CheckpointError(report)
    (logger or _LOGGER).warning("%s", report)


def fits(module: nn.Module, state_dict: Any) -> bool:
    """Whether `state_dict` has the names and shapes of `module`, none else."""
    if not isinstance(state_dict, Mapping):
        return False
    own = module.state_dict()
    return own.keys() == state_dict.keys() and all(
        getattr(value, "shape", None) == getattr(state_dict[key], "shape", None)
        for key, value in own.items()
    )


def renamed(
    state_dict: Mapping[str, Any], rename: Callable[[str], str]
) -> OrderedDict[str, Any]:
    result: Any = OrderedDict((rename(key), state_dict[key]) for key in state_dict)
    if hasattr(state_dict, "_metadata"):
        result._metadata = OrderedDict(
            (rename(f"{key}.")[:-1], value)
            for key, value in state_dict._metadata.items()
        )
    return result  # type: ignore[no-any-return]


def _load(
    module: nn.Module, state_dict: Mapping[str, Any]
) -> tuple[list[str], list[str], list[str]]:
    """(missing, unexpected, other complaints) of torch's own, lenient loading."""
    keys: list[tuple[list[str], list[str]]] = []
    handle = module.register_load_state_dict_post_hook(
        lambda _, incompatible: keys.append(
            (list(incompatible.missing_keys), list(incompatible.unexpected_keys))
        )
    )
    complaints: list[str] = []
    try:
        module.load_state_dict(state_dict, strict=False)
    except RuntimeError as error:
        # torch has loaded what fits and joined its complaints, one a line.
        complaints = [_shortened(line) for line in str(error).split("\n\t")[1:]]
        if not keys or not complaints:
            raise
    finally:
        handle.remove()
    missing, unexpected = keys[-1]
    return missing, unexpected, complaints


def _shortened(complaint: str) -> str:
    found = re.search(
        r"size mismatch for (\S+): .*torch\.Size\((.*?)\) from checkpoint, "
        r"the shape in current model is torch\.Size\((.*?)\)",
        complaint,
    )
    if found is None:
        return complaint.strip()
    return f"{found[1]} (file {found[2]}, model {found[3]})"


def _wrapped_like(own: set[str], state_dict: Mapping[str, Any]) -> Mapping[str, Any]:
    """With `module.` in front where the model is wrapped and the file is not."""
    model_is = bool(own) and all(key.startswith(WRAPPED) for key in own)
    file_is = any(key.startswith(WRAPPED) for key in state_dict)
    if not model_is or file_is:
        return state_dict
    return renamed(state_dict, lambda key: WRAPPED + key)


def _advice(own: set[str], state_dict: Mapping[str, Any]) -> str:
    """How to rename the keys, where one prefix more or less would make them fit."""
    for theirs in list(state_dict)[:_SHOWN]:
        for ours in own:
            if theirs.endswith(f".{ours}"):
                prefix = theirs.removesuffix(ours)
                return _try("^" + re.escape(prefix).replace("\\.", "[.]"), "")
            if ours.endswith(f".{theirs}"):
                return _try("^", ours.removesuffix(theirs))
    return ""


def _try(pattern: str, replacement: str) -> str:
    """In the form that YAML, JSON, Python and the command line read alike."""
    return f"; try revise_keys={json.dumps([[pattern, replacement]])} in the config"


def _listed(names: Sequence[str]) -> str:
    """At most a few names, on one line whatever is in them."""
    shown = [
        name if name.isprintable() else repr(name) for name in map(str, names[:_SHOWN])
    ]
    more = len(names) - _SHOWN
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")
