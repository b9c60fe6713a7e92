"""Padding variable-length samples or batches to the sizes of a few buckets, by key."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import default_collate

from devrun.errors import ConfigError, nearest


class Fits(Protocol):
    """What sizes are allowed, such as `devrun.data.bucketing.Buckets`."""

    def fit(self, length: int) -> int:
        """The size that tensors of up to `length` are padded (or cut) to."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """The tensors of a sample that are padded together, all to one size.

    `pad` is the value that each key is padded with, `dims` the dimension of a sample's
    tensor that varies, `mask` the key under which int64 ones and zeros are added that
    tell data from padding. A key is a path: `ids`, `0` in a tuple, `inputs.ids`; the
    empty one is the sample itself.
    """

    pad: Mapping[str, float]
    dims: Mapping[str, int]
    mask: Mapping[str, str]

    def tensors(self, item: Any) -> dict[str, Tensor]:
        """The tensors to pad, of a sample or a batch."""
        return {key: _tensor(get(item, key), key) for key in self.pad}

    def within(self, sample: Any) -> Axis:
        """Without the keys that a sample has not, but its batch may have."""
        pad = {key: value for key, value in self.pad.items() if has(sample, key)}
        return dataclasses.replace(self, pad=pad)

    def length(self, sample: Any, *, batched: bool = False) -> int:
        """The longest of the tensors along their dimensions; 0 if there is none."""
        sizes = self.sizes(self.tensors(sample), batched=batched)
        return max(sizes.values(), default=0)

    def sizes(self, tensors: Mapping[str, Tensor], *, batched: bool) -> dict[str, int]:
        return {
            key: self.size(key, tensor, batched=batched)
            for key, tensor in tensors.items()
        }

    def size(self, key: str, tensor: Tensor, *, batched: bool) -> int:
        dim = self.dim(key, batched=batched)
        if not -tensor.dim() <= dim < tensor.dim():
            raise ConfigError(
                f"{key!r} has the shape {tuple(tensor.shape)}{' in a batch' * batched} "
                f"and no dimension {self.dims[key]} that could vary"
            )
        return tensor.shape[dim]

    def dim(self, key: str, *, batched: bool) -> int:
        """The dimension; a batch has one more in front."""
        dim = self.dims[key]
        return dim + 1 if batched and dim >= 0 else dim


class BucketCollate:
    """`collate_fn` whose batches have one of the sizes of `buckets` along `axis`.

    With torch's default collate function the samples are padded before it, since it
    could not stack them; the output of any other is padded after it. The caller's
    samples are not changed. A worker can have it.

    Raises:
        ConfigError: a key is not there or cannot be padded, or a mask cannot be made.
        DataError: a sample is too long.
    """

    def __init__(
        self, collate_fn: Callable[[Any], Any], axis: Axis, buckets: Fits
    ) -> None:
        self.collate_fn = collate_fn
        self.axis, self.buckets = axis, buckets
        self.by_sample: bool = collate_fn is default_collate or getattr(
            collate_fn, "by_sample", False
        )

    def __call__(self, samples: Any) -> Any:
        if self.by_sample:
            return self.collate_fn(self._padded(samples))
        batch = self.collate_fn(samples)
        tensors = self.axis.tensors(batch)
        size = self.buckets.fit(max(self.axis.sizes(tensors, batched=True).values()))
        # row lengths come from the samples: a collate function may have padded already
        lengths = {key: self._lengths(samples, key) for key in self.axis.mask}
        return self._resized(batch, tensors, size, lengths, batched=True)

    def _padded(self, samples: Sequence[Any]) -> list[Any]:
        found = [self.axis.tensors(sample) for sample in samples]
        lengths = [self.axis.sizes(tensors, batched=False) for tensors in found]
        size = self.buckets.fit(max(max(own.values()) for own in lengths))
        return [
            self._resized(sample, tensors, size, own, batched=False)
            for sample, tensors, own in zip(samples, found, lengths, strict=True)
        ]

    def _lengths(self, samples: Any, key: str) -> list[int]:
        try:
            return [
                self.axis.size(key, _tensor(get(sample, key), key), batched=False)
                for sample in samples
            ]
        except ConfigError as error:
            raise ConfigError(
                f"no mask can be made for {key!r}: the samples do not show its length "
                f"({error}); let the collate function make one, and pad it with 0"
            ) from error

    def _resized(
        self,
        item: Any,
        tensors: Mapping[str, Tensor],
        size: int,
        lengths: Mapping[str, Any],
        *,
        batched: bool,
    ) -> Any:
        """`item` with its tensors at `size`, and with its masks."""
        axis = self.axis
        for key, tensor in tensors.items():
            dim = axis.dim(key, batched=batched)
            item = put(item, key, resized(tensor, dim, size, axis.pad[key]))
        for key, name in axis.mask.items():
            if has(item, name):
                raise ConfigError(
                    f"the mask {name!r} is there already: pad it with 0 instead"
                )
            length = torch.as_tensor(lengths[key])
            item = put(item, name, (torch.arange(size) < length[..., None]).long())
        return item


def resized(tensor: Tensor, dim: int, size: int, value: float) -> Tensor:
    """`tensor` cut to `size` along `dim`, or filled up with `value` at its end."""
    missing = size - tensor.shape[dim]
    if missing <= 0:
        return tensor.narrow(dim, 0, size)
    behind = tensor.dim() - 1 - dim % tensor.dim()  # F.pad counts from the last one
    return F.pad(tensor, [0, 0] * behind + [0, missing], value=value)


def get(item: Any, key: str) -> Any:
    """The part of a sample or batch at a path.

    Raises:
        ConfigError: there is none.
    """
    if not key:
        return item
    if type(item) is dict and key in item:
        return item[key]
    head, _, rest = key.partition(".")
    return get(_child(item, head), rest)


def has(item: Any, key: str) -> bool:
    try:
        get(item, key)
    except ConfigError:
        return False
    return True


def put(item: Any, key: str, value: Any) -> Any:
    """A copy of `item` with `value` at a path; what is not on the path is shared.

    One position beyond the end of a tuple or list makes it longer.
    """
    if not key:
        return value
    if type(item) is dict and key in item:
        return {**item, key: value}  # by far the most frequent
    head, _, rest = key.partition(".")
    value = put(_child(item, head), rest, value) if rest else value
    if isinstance(item, Mapping):
        copied: Any = copy.copy(item)
        copied[_key_in(item, head)] = value
        return copied
    if isinstance(item, (tuple, list)):
        index = _index(item, head, len(item) + (not hasattr(item, "_fields")))
        parts = [*item[:index], value, *item[index + 1 :]]
        return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)
    if not dataclasses.is_dataclass(item):
        raise _nothing_at(head, item, ())
    copied = copy.copy(item)
    object.__setattr__(copied, head, value)  # a frozen one refuses plain assignment
    return copied


def _child(item: Any, name: str) -> Any:
    if isinstance(item, Mapping):
        key = _key_in(item, name)
        if key not in item:
            raise _nothing_at(name, item, item)
        return item[key]
    if isinstance(item, (tuple, list)):
        return item[_index(item, name, len(item))]
    fields = dataclasses.fields(item) if dataclasses.is_dataclass(item) else ()
    if name not in [field.name for field in fields]:
        raise _nothing_at(name, item, [field.name for field in fields])
    return getattr(item, name)


def _key_in(item: Mapping[Any, Any], name: str) -> Any:
    number = int(name) if name.isdecimal() else name
    return number if number in item and name not in item else name


def _index(item: Sequence[Any], name: str, end: int) -> int:
    if name in getattr(item, "_fields", ()):
        return int(item._fields.index(name))  # type: ignore[attr-defined]
    if not name.isdecimal() or int(name) >= end:
        raise _nothing_at(name, item, getattr(item, "_fields", range(len(item))))
    return int(name)


def _nothing_at(name: str, item: Any, known: Any) -> ConfigError:
    hint = nearest(name, map(str, known))
    kind = type(item).__name__
    return ConfigError(f"no {name!r} in a {kind} of the data{'; ' * bool(hint)}{hint}")


def _tensor(value: Any, key: str) -> Tensor:
    """`value` as a tensor: arrays and lists of numbers are among what is padded."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        if not key:
            raise ConfigError(
                f"a sample is a {type(value).__name__}: pad takes the key of the part "
                "to pad, such as {0: 0} or {input_ids: 0}"
            ) from error
        raise ConfigError(
            f"{key!r} is a {type(value).__name__} that cannot be padded: it takes "
            "tensors, arrays and lists of numbers"
        ) from error
