"""Position embeddings for images of another size, and heads for other classes."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from devrun.checkpoint.keymap import is_dense

_PATCHES = re.compile(r".*\b(?:pos_embed|pos_embedding|position_embeddings)")
_HEAD = re.compile(
    r".*\b(?:fc|head|head_dist|classifier(?:\.\d+)?|last_linear|conv_seg|fc_cls)"
    r"\.(?:weight|bias)"
)


def with_resized_positions(
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
    result: Any = OrderedDict({**state_dict, **changed})
    if hasattr(state_dict, "_metadata"):
        result._metadata = state_dict._metadata
    return result, notes


def is_head(key: str, theirs: Any, ours: Tensor) -> bool:
    """Whether it is a classifier's weight or bias for another number of classes."""
    return bool(
        _HEAD.fullmatch(key)
        and is_dense(theirs)
        and ours.shape[:1] != theirs.shape[:1]
        and ours.shape[1:] == theirs.shape[1:]
    )


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
