"""`load_state_dict`: load what fits, and report what does not in one record."""

from __future__ import annotations

import logging
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from devrun.checkpoint.keymap import counted, find_key_map, is_dense
from devrun.errors import CheckpointError
from devrun.text import joined, listed

_LOGGER = logging.getLogger("devrun.checkpoint")
_PATCHES = re.compile(r".*\b(?:pos_embed|pos_embedding|position_embeddings)")
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

    Keys of another layout, or under another prefix, are translated (`keymap`), and
    position embeddings for another number of patches interpolated.

    Raises:
        CheckpointError: next to nothing fits, or `strict` and not everything does.
    """
    own = {k: v for k, v in module.state_dict().items() if isinstance(v, Tensor)}
    key_map, given = find_key_map(own, state_dict), state_dict
    if key_map is not None:
        given = key_map.apply(state_dict)
    given, resized = _with_resized_positions(own, given)
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
    lines = _told(("resized", resized)) + problems
    head = f"loaded all {len(own)} tensors of {source} into {model}"
    if lines:
        head = f"{source} into {model}: {matched} tensors matched"
    level = logging.WARNING if problems else logging.INFO
    (logger or _LOGGER).log(level, "%s", "\n  ".join([head, *lines]))


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


def _with_resized_positions(
    own: Mapping[str, Tensor], state_dict: Mapping[str, Any]
) -> tuple[Mapping[str, Any], list[str]]:
    """The file with position embeddings of the model's sizes, and which they were.

    Those of a Vision Transformer, (1, extra tokens + patches, channels) for a square
    image, are interpolated: bicubic, without antialiasing or aligned corners, in
    float32, as `resize_pos_embed` of MMClassification (mmcls/models/utils/embed.py);
    the extra tokens (a class token, one of distillation) stay as they are. Everything
    else of another shape stays as it was.
    """
    changed: dict[str, Tensor] = {}
    notes = []
    for key, ours in own.items():
        theirs = state_dict.get(key)
        if not is_dense(theirs) or theirs.shape == ours.shape:
            continue
        if _PATCHES.fullmatch(key) and (new := _resized(theirs, ours)) is not None:
            changed[key] = new
            shapes = f"file {list(theirs.shape)}, model {list(ours.shape)}"
            notes.append(f"{key} ({shapes}, bicubic)")
    if not changed:
        return state_dict, notes
    return like(state_dict, {**state_dict, **changed}), notes


def _resized(theirs: Tensor, ours: Tensor) -> Tensor | None:
    if theirs.dim() != 3 or not theirs.is_floating_point():
        return None
    if theirs.shape[::2] != ours.shape[::2] or theirs.shape[0] != 1:
        return None
    for extra in (1, 0, 2):
        old, new = (math.isqrt(max(0, t.shape[1] - extra)) for t in (theirs, ours))
        sizes = [old**2 + extra, new**2 + extra]
        if old and new and sizes == [theirs.shape[1], ours.shape[1]]:
            kept, patches = theirs[:, :extra], theirs[:, extra:].float()
            grid = patches.reshape(1, old, old, -1).permute(0, 3, 1, 2)
            grid = F.interpolate(grid, (new, new), mode="bicubic", align_corners=False)
            scaled = grid.flatten(2).transpose(1, 2).to(theirs.dtype)
            return torch.cat((kept, scaled), dim=1)
    return None
