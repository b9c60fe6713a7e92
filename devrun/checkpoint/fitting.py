"""`load_state_dict`: load what fits, and report what does not in one record."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from devrun.checkpoint.keymap import counted, find_key_map
from devrun.errors import CheckpointError
from devrun.text import joined, listed

_LOGGER = logging.getLogger("devrun.checkpoint")
_SHOWN = 10
_LEAST = 10
"""A file of which not one in so many tensors fits is of another model."""


def load_state_dict(
    module: nn.Module,
    state_dict: Mapping[str, Any],
    strict: bool = False,
    logger: logging.Logger | None = None,
    *,
    source: str = "the state_dict",
) -> None:
    """Load what fits of `state_dict` and log, in one record, what does not.

    Keys of another layout, or under another prefix, are translated (`keymap`).

    Raises:
        CheckpointError: next to nothing fits, or `strict` and not everything does.
    """
    own = {k: v for k, v in module.state_dict().items() if isinstance(v, Tensor)}
    key_map, given = find_key_map(own, state_dict), state_dict
    if key_map is not None:
        given = key_map.apply(state_dict)
    missing, unexpected, refused = _load(module, own, given)
    lost = refused.keys() | set(missing)
    matched = len([key for key in counted(own) if key in given.keys() - lost])
    mis_shaped = [f"{key}{shapes}" for key, shapes in refused.items()]
    problems = _told(
        ("missing", counted(missing)),
        ("unexpected", counted(unexpected)),
        ("of another shape", mis_shaped),
    )
    model = type(module).__name__ + (f" (keys such as {key_map})" if key_map else "")
    few = min(len(counted(own)), len(counted(state_dict)))
    if own and matched < max(1, few // _LEAST):
        some = (", ".join(map(repr, list(keys)[:3])) for keys in (state_dict, own))
        keys = "its keys are {}, the model's {}".format(*some)
        raise CheckpointError(
            f"{f'only {matched} tensors' if matched else 'nothing'} in {source} fits "
            f"{model}; {'; '.join(problems) if mis_shaped else keys}"
        )
    if strict and problems:
        raise CheckpointError(f"{source} does not fit {model}: {'; '.join(problems)}")
    head = f"loaded all {len(own)} tensors of {source} into {model}"
    if problems:
        head = f"{source} into {model}: {matched} tensors matched"
    level = logging.WARNING if problems else logging.INFO
    (logger or _LOGGER).log(level, "%s", "\n  ".join([head, *problems]))


def _told(*found: tuple[str, list[str]]) -> list[str]:
    return [
        f"{len(names)} {what}: {listed(names, _SHOWN)}"
        for what, names in found
        if names
    ]


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
    module: nn.Module, own: Mapping[str, Tensor], state_dict: Mapping[str, Any]
) -> tuple[list[str], list[str], dict[str, str]]:
    """(missing, unexpected, key -> shapes of one of another shape) of what was loaded.

    Raises:
        CheckpointError: torch cannot put a tensor into the model.
    """
    refused = {
        key: f" (file {list(theirs.shape)}, model {list(ours.shape)})"
        for key, ours in own.items()
        if isinstance(theirs := state_dict.get(key), Tensor)
        and theirs.shape != ours.shape
    }
    fitting = like(
        state_dict, {k: state_dict[k] for k in state_dict if k not in refused}
    )
    try:
        missing, unexpected = module.load_state_dict(fitting, strict=False)
    except (RuntimeError, AttributeError, TypeError) as error:
        *_, last = str(error).splitlines() or [type(error).__name__]
        raise CheckpointError(
            f"{type(module).__name__} cannot load the tensors of this file: "
            f"{joined(last)}"
        ) from error
    return [key for key in missing if key not in refused], unexpected, refused


def like(state_dict: Any, items: Mapping[str, Any]) -> Any:
    """`items` as a state_dict, with the versions of modules that the other has."""
    made: Any = OrderedDict(items)
    if hasattr(state_dict, "_metadata"):
        made._metadata = state_dict._metadata
    return made
