"""`load_state_dict`: load what fits, and report what does not in one record."""

from __future__ import annotations

import functools
import logging
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, List, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from devrun.errors import CheckpointError

_LOGGER = logging.getLogger("devrun.checkpoint")
_PATCHES = re.compile(r".*\b(?:pos_embed|pos_embedding|position_embeddings)")
_SHOWN = 10
_LEAST = 10
"""A file of which not one in so many tensors fits is of another model."""
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
    missing, unexpected, refused = _load(module, given)
    lost = {key for key, _ in refused} | set(missing)
    matched = len([key for key in counted(own) if key in given.keys() - lost])
    mis_shaped = [f"{key}{shapes}" for key, shapes in refused]
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
    return [f"{len(names)} {what}: {_listed(names)}" for what, names in found if names]


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
) -> tuple[list[str], list[str], list[tuple[str, str]]]:
    """(missing, unexpected, complaints) of torch's own, lenient loading."""
    keys: list[tuple[list[str], list[str]]] = []
    handle = module.register_load_state_dict_post_hook(
        lambda _, incompatible: keys.append(
            (list(incompatible.missing_keys), list(incompatible.unexpected_keys))
        )
    )
    complaints: list[tuple[str, str]] = []
    try:
        module.load_state_dict(state_dict, strict=False)
    except (RuntimeError, AttributeError, TypeError) as error:
        # torch has loaded what fits and joined its complaints, one a line.
        complaints = [_shortened(line) for line in str(error).split("\n\t")[1:]]
        if not keys or not complaints:
            raise CheckpointError(
                f"{type(module).__name__} cannot load the tensors of this file: "
                f"{str(error).splitlines()[0]}"
            ) from error
    finally:
        handle.remove()
    missing, unexpected = keys[-1]
    return missing, unexpected, complaints


def _shortened(complaint: str) -> tuple[str, str]:
    """(key, shapes) of a tensor of another shape; else the complaint as it is."""
    found = re.search(
        r"size mismatch for (\S+): .*torch\.Size\((.*?)\) from checkpoint, "
        r"the shape in current model is torch\.Size\((.*?)\)",
        complaint,
    )
    if found is None:
        return complaint.strip(), ""
    return found[1], f" (file {found[2]}, model {found[3]})"


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
    result: Any = OrderedDict({**state_dict, **changed})
    if hasattr(state_dict, "_metadata"):
        result._metadata = state_dict._metadata
    return result, notes


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


def _listed(names: Sequence[str]) -> str:
    """At most a few names, on one line whatever is in them."""
    shown = [
        name if name.isprintable() else repr(name) for name in map(str, names[:_SHOWN])
    ]
    more = len(names) - _SHOWN
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


# Names of other packages -----------------------------------------------------
# Names are compared after this table has turned them into ours, without the prefix that
# a wrapper puts before them; where more of them agree then, they are read so.

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
