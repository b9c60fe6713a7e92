"""Which tensor of a file is which of a model, by what their names and shapes are.

Names are read as they stand, with and without a prefix, and by the table below: what
other packages call the weights of ResNets and Vision Transformers. Of all readings of
the file and of the model those two are taken under which most tensors have the same
name and shape.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor

from devrun.errors import CheckpointError

DERIVED = ("num_batches_tracked", "relative_position_index", "attn_mask")
"""What is no weight: a counter of batch norms, and what a model makes of its sizes."""
_DEPTH, _SHARE = 3, 4
"""A prefix has at most so many parts, and at least one in so many of the keys."""
_MOST = 5_000
"""Tensors; of the models in the table none has more."""

# Of each model and package: what stands before the names of the body, which has files
# of its own without that; the names in our models, which are timm's and for ResNet also
# torchvision's; in the same order theirs, the head last. `{}` is a number, a dot at the
# end each tensor of that module, `*` all that begins so; `{q|k|v}` are several tensors
# which, one below the other, are ours.
_RESNET = "conv1. bn1. layer{}.{}.* fc."
_VIT = (
    "cls_token pos_embed patch_embed.proj. blocks.{}.norm1. blocks.{}.attn.qkv.* "
    "blocks.{}.attn.proj. blocks.{}.norm2. blocks.{}.mlp.fc1. blocks.{}.mlp.fc2. norm. "
    "head."
)
_HUB_BLOCK = {
    **{f"conv{n + 1}.": f"layer.{n}.convolution." for n in range(3)},
    **{f"bn{n + 1}.": f"layer.{n}.normalization." for n in range(3)},
    "downsample.0.": "shortcut.convolution.",
    "downsample.1.": "shortcut.normalization.",
}
_HUB_BLOCKS = {  # which numbers its stages from 0
    f"layer{n + 1}.{{}}.{ours}": f"encoder.stages.{n}.layers.{{}}.{theirs}"
    for n in range(4)
    for ours, theirs in _HUB_BLOCK.items()
}
_TABLE = (
    ("ResNet", "torchvision", "", _RESNET, _RESNET),
    ("ResNet", "timm", "", _RESNET, _RESNET),
    ("ResNet", "mmcls", "backbone.", _RESNET, "conv1. bn1. layer{}.{}.* head.fc."),
    ("ResNet", "transformers", "resnet.",
     f"conv1. bn1. {' '.join(_HUB_BLOCKS)} fc.",
     "embedder.embedder.convolution. embedder.embedder.normalization. "
     f"{' '.join(_HUB_BLOCKS.values())} classifier.1."),
    ("VisionTransformer", "timm", "", _VIT, _VIT),
    ("VisionTransformer", "mmcls", "backbone.", _VIT,
     "cls_token pos_embed patch_embed.projection. layers.{}.ln1. "
     "layers.{}.attn.qkv.* layers.{}.attn.proj. layers.{}.ln2. "
     "layers.{}.ffn.layers.0.0. layers.{}.ffn.layers.1. ln1. head.layers.head."),
    *(("VisionTransformer", name, "", _VIT,
       "class_token encoder.pos_embedding conv_proj. "
       "encoder.layers.encoder_layer_{}.ln_1. "
       "encoder.layers.encoder_layer_{}.self_attention.in_proj_* "
       "encoder.layers.encoder_layer_{}.self_attention.out_proj. "
       "encoder.layers.encoder_layer_{}.ln_2. "
       f"encoder.layers.encoder_layer_{{}}.mlp.{first}. "
       f"encoder.layers.encoder_layer_{{}}.mlp.{second}. encoder.ln. heads.head.")
      for name, first, second in (("torchvision", "0", "3"),
                                  ("torchvision's files", "linear_1", "linear_2"))),
    ("VisionTransformer", "transformers", "vit.", _VIT,
     "embeddings.cls_token embeddings.position_embeddings "
     "embeddings.patch_embeddings.projection. encoder.layer.{}.layernorm_before. "
     "encoder.layer.{}.attention.attention.{query|key|value}.* "
     "encoder.layer.{}.attention.output.dense. encoder.layer.{}.layernorm_after. "
     "encoder.layer.{}.intermediate.dense. encoder.layer.{}.output.dense. "
     "layernorm. classifier."),
    ("VisionTransformer", "transformers 5", "vit.", _VIT,
     "embeddings.cls_token embeddings.position_embeddings "
     "embeddings.patch_embeddings.projection. layers.{}.layernorm_before. "
     "layers.{}.attention.{q|k|v}_proj.* layers.{}.attention.o_proj. "
     "layers.{}.layernorm_after. layers.{}.mlp.fc1. layers.{}.mlp.fc2. layernorm. "
     "classifier."),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Layout:
    """The names that a package gives the weights of a model."""

    model: str
    name: str
    body: str
    ours: str
    theirs: str

    @functools.cached_property
    def rows(self) -> list[tuple[_Names, list[_Names]]]:
        """Our name, and theirs for its parts, in order."""
        pairs = list(zip(self.ours.split(), self.theirs.split(), strict=True))
        return [
            (_Names(ours), _parts(theirs, "" if ours == pairs[-1][0] else self.body))
            for ours, theirs in pairs
        ]

    def read(self, key: str) -> tuple[str, int, int] | None:
        """Our name for `key`, which of its parts it is, and of how many."""
        for ours, theirs in self.rows:
            for part, names in enumerate(theirs):
                if (found := names.match(key)) is not None:
                    return ours.fill(found), part, len(theirs)
        return None

    def write(self, name: str) -> list[str]:
        """Their names for the parts of ours; none where they have no such thing."""
        for ours, theirs in self.rows:
            if (found := ours.match(name)) is not None:
                return [names.fill(found) for names in theirs]
        return []


class _Names:
    """All names of one form."""

    def __init__(self, text: str, body: str = "") -> None:
        bare, deep = text.removesuffix("*"), text.endswith("*")
        rest = r"(.+)" if deep else r"([^.]+)" if text.endswith(".") else ""
        numbered = re.escape(bare).replace(r"\{\}", r"(\d+)")
        self._regex = re.compile(f"(?:{re.escape(body)})?{numbered}{rest}")
        self._form = body + bare + "{}" * bool(rest)
        self._begins = bare.partition("{")[0], body + bare.partition("{")[0]

    def match(self, name: str) -> tuple[str, ...] | None:
        """The numbers and the rest of a name of this form."""
        if not name.startswith(self._begins):  # far quicker than the pattern
            return None
        found = self._regex.fullmatch(name)
        return None if found is None else found.groups()

    def fill(self, found: Iterable[str]) -> str:
        return self._form.format(*found)


def _parts(text: str, body: str) -> list[_Names]:
    slot = re.search(r"\{(\w+(?:\|\w+)+)\}", text)
    if slot is None:
        return [_Names(text, body)]
    return [_Names(text.replace(slot[0], one), body) for one in slot[1].split("|")]


LAYOUTS = tuple(Layout(*row) for row in _TABLE)


@dataclass(frozen=True)
class Reading:
    """Tensors under `prefix` by our names, or by their own without a layout."""

    layout: Layout | None
    prefix: str
    keys: dict[str, list[str]] = field(default_factory=dict)
    """Our name -> the keys of its parts."""

    def tensors(self, state_dict: Mapping[str, Any]) -> dict[str, Tensor]:
        """By our names, put together where they are in parts."""
        found = {}
        for name, keys in self.keys.items():
            parts = [state_dict[key] for key in keys]
            if len(parts) == 1:
                found[name] = parts[0]
            elif parts[0].dim() and len({part.shape for part in parts}) == 1:
                found[name] = torch.cat(parts)
        return found

    def __str__(self) -> str:
        name = f"{self.layout.name} ({self.layout.model})" if self.layout else "as is"
        return name + (f" under {self.prefix!r}" if self.prefix else "")


@dataclass(frozen=True)
class KeyMap:
    """From the reading of a file to that of a model."""

    file: Reading
    model: Reading
    fits: int = 0
    """Weights of the model whose name and shape the file has."""

    @property
    def renames(self) -> bool:
        """Whether it changes the prefix of keys and nothing else."""
        return self.file.layout is self.model.layout is None

    @property
    def changes(self) -> bool:
        return not self.renames or self.file.prefix != self.model.prefix

    def sources(self) -> dict[str, tuple[str, ...]]:
        """Key of the model -> keys of the file."""
        return {
            key: tuple(self.file.keys[name])
            for name, keys in self.model.keys.items()
            if name in self.file.keys
            for key in keys
        }

    def apply(self, state_dict: Mapping[str, Any]) -> dict[str, Tensor]:
        """The tensors of the file under the model's keys."""
        whole = self.file.tensors(state_dict)
        result: dict[str, Tensor] = {}
        for name, keys in self.model.keys.items():
            if name in whole:
                result.update(taken_apart(whole[name], keys))
        return result

    def rename(self, key: str) -> str:
        """A key of the file under the model's prefix, where it `renames`."""
        if not key.startswith(self.file.prefix):
            return key
        return self.model.prefix + key.removeprefix(self.file.prefix)

    def __str__(self) -> str:
        if not self.renames:
            return f"{self.file} -> {self.model}"
        if self.file.prefix:
            return f"without the prefix {self.file.prefix!r}"
        return f"with the prefix {self.model.prefix!r}"


def find_key_map(
    own: Mapping[str, Any], state_dict: Mapping[str, Any]
) -> tuple[KeyMap | None, str]:
    """(the key map, if one is needed; what comes closest in words, if none fits).

    The keys as they are win over a map that fits no more tensors, and a map must fit
    half of the tensors on one side.

    Raises:
        CheckpointError: two maps fit as many tensors, in different places.
    """
    mine, theirs = _shapes_of(own), _shapes_of(state_dict)
    if {k: v.shape for k, v in mine.items()} == {k: v.shape for k, v in theirs.items()}:
        return None, ""
    pairs = list(_pairs(theirs, mine))
    same = next(pair.fits for pair in pairs if not pair.changes)
    best = max(pair.fits for pair in pairs)
    if best <= same or 2 * best < min(_counted(mine), _counted(theirs)):
        return None, _closest(pairs, mine, theirs)
    first, *others = [pair for pair in pairs if pair.changes and pair.fits == best]
    places = first.sources()
    for other in others:
        if any(places.get(key, keys) != keys for key, keys in other.sources().items()):
            raise CheckpointError(
                f"its tensors fit as well {first} as {other}; choose by revise_keys "
                "(--revise-keys), which can take a prefix off"
            )
    return first, ""


def _closest(
    pairs: list[KeyMap], mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> str:
    """The map under which half of the names agree; else some keys of both."""

    def common(pair: KeyMap) -> list[str]:
        return [name for name in pair.model.keys if name in pair.file.keys]

    best = max(pairs, key=lambda pair: len(common(pair)))
    names = common(best)
    if 2 * len(names) < min(len(mine), len(theirs)):
        some = [", ".join(map(repr, list(keys)[:3])) for keys in (theirs, mine)]
        return f"its keys are {some[0]}, the model's {some[1]}"
    how = f"the key map {best}" if best.changes else "its keys as they are"
    found = f"closest is {how}: {len(names)} of {len(mine)} names agree"
    file, model = best.file.tensors(theirs), best.model.tensors(mine)
    for name in names:
        if name in file and file[name].shape != model[name].shape:
            shapes = [list(side[name].shape) for side in (file, model)]
            return f"{found}, {name!r} is {shapes[0]} in the file and {shapes[1]} here"
    return found


def relaid(state_dict: Mapping[str, Any], layout: str) -> dict[str, Any]:
    """The weights of a model in a layout of that name.

    Raises:
        CheckpointError: the keys are those of no model in the table, or it has no such
            layout of that model.
    """
    shapes = _shapes_of(state_dict)
    for source in LAYOUTS:
        reading = _read(shapes, source, "")
        if sum(map(len, reading.keys.values())) != len(state_dict):
            continue
        targets = {one.name: one for one in LAYOUTS if one.model == source.model}
        if layout not in targets:
            raise CheckpointError(
                f"there is no layout {layout!r} of {source.model}; known are "
                + ", ".join(targets)
            )
        result: dict[str, Any] = {}
        for name, whole in reading.tensors(state_dict).items():
            if not (keys := targets[layout].write(name)):
                raise CheckpointError(
                    f"{name!r} has no place in the layout {layout!r} of {source.model}"
                )
            result.update(taken_apart(whole, keys))
        return result
    models = ", ".join(dict.fromkeys(one.model for one in LAYOUTS))
    raise CheckpointError(
        f"its keys are of no model whose layouts are known ({models}); leave --layout "
        "out to write them as they are"
    )


def taken_apart(whole: Tensor, keys: list[str]) -> dict[str, Tensor]:
    """The parts of a tensor of ours, by their keys."""
    if whole.dim() == 0 or len(whole) % len(keys):  # it will be of another shape
        return dict.fromkeys(keys, whole)
    return dict(zip(keys, whole.chunk(len(keys)), strict=True))


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


def _shapes_of(state_dict: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors without memory, of the same shapes."""
    return {
        key: torch.empty(value.shape, device="meta")
        for key, value in state_dict.items()
        if is_dense(value)
    }


def _counted(keys: Iterable[str]) -> int:
    return sum(not key.endswith(DERIVED) for key in keys)


def _prefixes(keys: Iterable[str]) -> list[str]:
    """The empty one, and what enough of the keys begin with."""
    names = list(keys)
    begins: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")[:-1]
        for depth in range(1, min(_DEPTH, len(parts)) + 1):
            begins[".".join(parts[:depth]) + "."] += 1
    return ["", *(p for p, count in begins.items() if count * _SHARE >= len(names))]


def _readings(shapes: Mapping[str, Tensor]) -> Iterator[Reading]:
    for prefix in _prefixes(shapes):
        keys = [key for key in shapes if key.startswith(prefix)]
        yield Reading(None, prefix, {key[len(prefix) :]: [key] for key in keys})
        for layout in LAYOUTS if len(shapes) <= _MOST else ():
            if (reading := _read(shapes, layout, prefix)).keys:
                yield reading


def _read(shapes: Mapping[str, Tensor], layout: Layout, prefix: str) -> Reading:
    found: dict[str, list[str]] = {}
    for key in shapes:
        known = layout.read(key[len(prefix) :]) if key.startswith(prefix) else None
        if known is not None:
            name, part, parts = known
            found.setdefault(name, [""] * parts)[part] = key
    whole = {name: keys for name, keys in found.items() if all(keys)}
    return Reading(layout, prefix, whole)


def _pairs(file: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> Iterator[KeyMap]:
    """Readings under one prefix, or one of them under one, and how well they fit."""
    ours = [(reading, reading.tensors(model)) for reading in _readings(model)]
    for theirs in _readings(file):
        given = theirs.tensors(file)
        for reading, wanted in ours:
            if theirs.prefix and reading.prefix and theirs.prefix != reading.prefix:
                continue
            fits = sum(
                len(reading.keys[name])
                for name, tensor in wanted.items()
                if not name.endswith(DERIVED)
                and name in given
                and given[name].shape == tensor.shape
            )
            yield KeyMap(theirs, reading, fits)
