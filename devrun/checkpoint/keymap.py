"""The names that other packages give the weights of ResNets and Vision Transformers.

Names are compared after this table has turned them into ours, without the prefix that
a wrapper puts before them; where more of them agree then, they are read so.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, List, Mapping

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

DERIVED = ("num_batches_tracked", "relative_position_index", "attn_mask")
"""What is no weight: a counter of batch norms, and what a model makes of its sizes."""
_PREFIXES = r"(?:(?:module|model|backbone|resnet|vit)\.)*"

# Our names, which are timm's (and for ResNets torchvision's): theirs. N is a number, *
# the rest of a name; a|b|c are tensors which, one below the other, are ours.
_LAYER = "encoder.layers.encoder_layer_N"
_RESNET_BLOCK = {
    **{f"conv{n + 1}.*": f"layer.{n}.convolution.*" for n in range(3)},
    **{f"bn{n + 1}.*": f"layer.{n}.normalization.*" for n in range(3)},
    "downsample.0.*": "shortcut.convolution.*",
    "downsample.1.*": "shortcut.normalization.*",
}
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
    "transformers": {
        "conv1.*": "embedder.embedder.convolution.*",
        "bn1.*": "embedder.embedder.normalization.*",
        **{
            f"layer{stage + 1}.N.{ours}": f"encoder.stages.{stage}.layers.N.{theirs}"
            for stage in range(4)
            for ours, theirs in _RESNET_BLOCK.items()
        },
        "fc.*": "classifier.1.*",
        "cls_token": "embeddings.cls_token",
        "pos_embed": "embeddings.position_embeddings",
        "patch_embed.proj.*": "embeddings.patch_embeddings.projection.*",
        "blocks.N.norm1.*": "encoder.layer.N.layernorm_before.*",
        "blocks.N.attn.qkv.*": "encoder.layer.N.attention.attention.query|key|value.*",
        "blocks.N.attn.proj.*": "encoder.layer.N.attention.output.dense.*",
        "blocks.N.norm2.*": "encoder.layer.N.layernorm_after.*",
        "blocks.N.mlp.fc1.*": "encoder.layer.N.intermediate.dense.*",
        "blocks.N.mlp.fc2.*": "encoder.layer.N.output.dense.*",
        "norm.*": "layernorm.*",
        "head.*": "classifier.*",
    },
    "transformers 5": {
        "blocks.N.norm1.*": "layers.N.layernorm_before.*",
        "blocks.N.attn.qkv.*": "layers.N.attention.q_proj|k_proj|v_proj.*",
        "blocks.N.attn.proj.*": "layers.N.attention.o_proj.*",
        "blocks.N.norm2.*": "layers.N.layernorm_after.*",
        "blocks.N.mlp.fc1.*": "layers.N.mlp.fc1.*",
        "blocks.N.mlp.fc2.*": "layers.N.mlp.fc2.*",
    },
}


Names = Mapping[str, List[str]]
"""Our name -> the keys of its tensor, or of the parts of it, in order."""


@dataclass(frozen=True)
class KeyMap:
    """From the keys of a file to those of a model."""

    file: Names
    model: Names

    def sources(self) -> dict[str, list[str]]:
        """Key of the model -> keys of the file."""
        both = [name for name in self.model if name in self.file]
        return {key: self.file[name] for name in both for key in self.model[name]}

    def apply(self, state_dict: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors of the file by the model's keys, where it has them."""
        used = {key for keys in self.sources().values() for key in keys}
        result = {key: state_dict[key] for key in state_dict if key not in used}
        for name, keys in self.model.items():
            if name in self.file:
                parts = [state_dict[key] for key in self.file[name]]
                whole = parts[0] if len(parts) == 1 else torch.cat(parts)
                even = whole.dim() and len(whole) % len(keys) == 0
                values = whole.chunk(len(keys)) if even else [whole] * len(keys)
                result.update(zip(keys, values))
        return result

    def __str__(self) -> str:
        """One of its pairs."""
        places = self.sources().items()
        key, keys = next(pair for pair in places if pair[1] != [pair[0]])
        return f"{keys[0]} as {key}"


def find_key_map(
    own: Mapping[str, Any], state_dict: Mapping[str, Any]
) -> KeyMap | None:
    """How to read the file by the model's keys; None where they stay as they are.

    They do where no more of them agree by our names, or less than half on both sides.
    """
    found = KeyMap(_named(state_dict), _named(own))
    agree = counted(found.sources())
    as_they_are = counted(own.keys() & state_dict.keys())
    least = min(len(counted(own)), len(counted(state_dict)))
    if len(agree) <= len(as_they_are) or 2 * len(agree) < least:
        return None
    return found


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


def _named(state_dict: Mapping[str, Any]) -> Names:
    found: dict[str, list[str]] = {}
    for key, value in state_dict.items():
        if not is_dense(value):
            continue
        name, part, parts = _our_name(key)
        keys = found.setdefault(name, [""] * parts)
        if len(keys) == parts and not keys[part]:
            keys[part] = key
        else:  # another key has that name
            found.setdefault(key, [key])
    return {name: keys for name, keys in found.items() if _complete(keys, state_dict)}


def _complete(keys: list[str], state_dict: Mapping[str, Any]) -> bool:
    """Whether all parts of a tensor are there, and can be put together."""
    shapes = {state_dict[key].shape for key in keys if key}
    return all(keys) and (len(keys) == 1 or (len(shapes) == 1 and shapes != {()}))


def _our_name(key: str) -> tuple[str, int, int]:
    """Our name for a key, which of its parts it is, and of how many."""
    for begin, pattern, ours, part, parts in _patterns():
        if begin in key and (found := pattern.fullmatch(key)):
            return _filled(ours, found.groups()), part, parts
    return re.sub(f"^{_PREFIXES}", "", key), 0, 1


def _filled(form: str, groups: Iterable[str]) -> str:
    rest = iter(groups)
    return re.sub(r"N|[*]", lambda _: next(rest), form)


@functools.lru_cache(maxsize=None)
def _patterns() -> list[tuple[str, re.Pattern[str], str, int, int]]:
    """What is in a key, its pattern, our name of it, which part of how many it is."""
    found = []
    for ours, theirs in (pair for names in _NAMES.values() for pair in names.items()):
        slot = re.search(r"\w+(?:[|]\w+)+|$", theirs)[0]  # type: ignore[index]
        words = slot.split("|")
        for part, word in enumerate(words):
            text = theirs.replace(slot, word) if slot else theirs
            form = re.escape(text).replace("N", r"(\d+)").replace(r"\*", "(.+)")
            begin = re.split(r"N|[*]", text)[0]
            pattern = re.compile(_PREFIXES + form)
            found.append((begin, pattern, ours, part, len(words)))
    return found
