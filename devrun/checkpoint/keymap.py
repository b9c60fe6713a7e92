"""The names that other packages give the weights of ResNets and Vision Transformers.

Names are compared after this table has turned them into ours, without the prefix that
a wrapper puts before them; where more of them agree then, they are read so.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

DERIVED = ("num_batches_tracked", "relative_position_index", "attn_mask")
"""What is no weight: a counter of batch norms, and what a model makes of its sizes."""
_PREFIXES = r"(?:(?:module|model|backbone|resnet|vit)\.)*"

# Our names, which are timm's (and for ResNets torchvision's): theirs. N is a number, *
# the rest of a name.
_LAYER = "encoder.layers.encoder_layer_N"
_NAMES: dict[str, dict[str, str]] = {
    "mmcls": {
        "fc.*": "head.fc.*",
        "patch_embed.proj.*": "patch_embed.projection.*",
        "blocks.N.norm1.*": "layers.N.ln1.*",
        "blocks.N.attn.*": "layers.N.attn.*",
        "blocks.N.norm2.*": "layers.N.ln2.*",
        "blocks.N.mlp.fc1.*": "layers.N.ffn.layers.0.0.*",
        "blocks.N.mlp.fc2.*": "layers.N.ffn.layers.1.*",
        "norm.*": "ln1.*",
        "head.*": "head.layers.head.*",
    },
    "torchvision": {
        "cls_token": "class_token",
        "pos_embed": "encoder.pos_embedding",
        "patch_embed.proj.*": "conv_proj.*",
        "blocks.N.norm1.*": f"{_LAYER}.ln_1.*",
        "blocks.N.attn.qkv.*": f"{_LAYER}.self_attention.in_proj_*",
        "blocks.N.attn.proj.*": f"{_LAYER}.self_attention.out_proj.*",
        "blocks.N.norm2.*": f"{_LAYER}.ln_2.*",
        "blocks.N.mlp.fc1.*": f"{_LAYER}.mlp.0.*",
        "blocks.N.mlp.fc2.*": f"{_LAYER}.mlp.3.*",
        "norm.*": "encoder.ln.*",
        "head.*": "heads.head.*",
    },
    "torchvision's files": {
        "blocks.N.mlp.fc1.*": f"{_LAYER}.mlp.linear_1.*",
        "blocks.N.mlp.fc2.*": f"{_LAYER}.mlp.linear_2.*",
    },
}


@dataclass(frozen=True)
class KeyMap:
    """From the keys of a file to those of a model."""

    sources: Mapping[str, str]
    """Key of the model -> key of the file."""

    def apply(self, state_dict: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors of the file by the model's keys, where it has them."""
        used = set(self.sources.values())
        result = {key: state_dict[key] for key in state_dict if key not in used}
        return {**result, **{k: state_dict[v] for k, v in self.sources.items()}}

    def __str__(self) -> str:
        """One of its pairs."""
        key, source = next(pair for pair in self.sources.items() if pair[0] != pair[1])
        return f"{source} as {key}"


def find_key_map(
    own: Mapping[str, Any], state_dict: Mapping[str, Any]
) -> KeyMap | None:
    """How to read the file by the model's keys; None where they stay as they are.

    They do where no more of them agree by our names, or less than half on both sides.
    """
    theirs, ours = _named(state_dict), _named(own)
    found = {ours[name]: theirs[name] for name in ours if name in theirs}
    agree = counted(found)
    as_they_are = counted(own.keys() & state_dict.keys())
    least = min(len(counted(own)), len(counted(state_dict)))
    if len(agree) <= len(as_they_are) or 2 * len(agree) < least:
        return None
    return KeyMap(found)


def counted(keys: Iterable[str]) -> list[str]:
    """Without those of what is no weight."""
    return [key for key in keys if not key.endswith(DERIVED)]


def is_dense(value: Any) -> TypeGuard[Tensor]:
    """Whether it is a tensor that can be taken apart and put together.

    None whose few values stand for many: a copy of it would have any size.
    """
    return (
        isinstance(value, Tensor)
        and not value.is_nested
        and value.layout == torch.strided
        and not value.is_quantized
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def _named(state_dict: Mapping[str, Any]) -> dict[str, str]:
    """Our name -> the key that has it first; the key itself is the name of another."""
    found: dict[str, str] = {}
    for key in filter(lambda key: is_dense(state_dict[key]), state_dict):
        name = _our_name(key)
        found.setdefault(key if name in found else name, key)
    return found


def _our_name(key: str) -> str:
    for begin, pattern, ours in _patterns():
        if begin in key and (found := pattern.fullmatch(key)):
            return _filled(ours, found.groups())
    return re.sub(f"^{_PREFIXES}", "", key)


def _filled(form: str, groups: Iterable[str]) -> str:
    rest = iter(groups)
    return re.sub(r"N|[*]", lambda _: next(rest), form)


@functools.lru_cache(maxsize=None)
def _patterns() -> list[tuple[str, re.Pattern[str], str]]:
    """What is in a key, its pattern, and our name of it."""
    found = []
    for ours, theirs in (pair for names in _NAMES.values() for pair in names.items()):
        form = re.escape(theirs).replace("N", r"(\d+)").replace(r"\*", "(.+)")
        begin = re.split(r"N|[*]", theirs)[0]
        found.append((begin, re.compile(_PREFIXES + form), ours))
    return found
