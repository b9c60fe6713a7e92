"""`encode_tree` and `decode_tree`: nested Python values as strict JSON plus tensors.

JSON's own values stand for themselves. Everything else is an object with one key
that begins with `$` and names its kind:

    {"$tensor": "name"}            a tensor of the safetensors file beside it; with
                                   `stride` or `dtype` when the file cannot say it
    {"$float": "nan"}              also "inf", "-inf"
    {"$int": "0x..."}              beyond 64 bits
    {"$bytes": "base64"}
    {"$tuple": [...]}              also $set, $frozenset, $size (torch.Size)
    {"$deque": [[...], maxlen]}
    {"$dict": [[key, value]...]}   a dict with other keys than plain strings
    {"$odict": [...]}              OrderedDict; `metadata` as a state_dict carries it
    {"$counter": [...]}
    {"$array": {...}}              a NumPy array, its bytes as a uint8 tensor
    {"$scalar": {...}}             a NumPy scalar

Two tensors that are the same view of one storage are stored once and come back as
one object, so tied weights stay tied. Other tensors that share memory come back
equal, each with memory of its own. No value names anything to import or call.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor

from devrun.checkpoint import tensorfile
from devrun.errors import CheckpointError
from devrun.tensors import is_spread, tensors_in

MAX_DEPTH = 64
_JSON_INT = 1 << 63
_SEQUENCES: dict[type, str] = {
    tuple: "$tuple",
    torch.Size: "$size",
    set: "$set",
    frozenset: "$frozenset",
}


@dataclass
class Encoded:
    """What `encode_tree` gives: a JSON value, and the CPU tensors it refers to.

    The tensors may share memory with the tree: write them before it changes. Those
    that are sharded (`devrun.tensors.is_spread`) are as they were in the tree.
    """

    tree: Any
    tensors: dict[str, Tensor] = field(default_factory=dict)


def has_shards(tree: Any) -> bool:
    """Whether any tensor in `tree` is in pieces, of which this process has some."""
    return any(map(is_spread, tensors_in(tree)))


def shared_memory(tensor: Tensor) -> Tensor:
    """`tensor` on the host and contiguous; itself where it is both already."""
    return tensor.cpu().contiguous()


def encode_tree(
    tree: Any,
    name: str = "tree",
    to_host: Callable[[Tensor], Tensor] = shared_memory,
) -> Encoded:
    """`tree` as JSON and tensors; `decode_tree` gives an equal tree back.

    `name` is what the paths in messages begin with; `to_host` gives a contiguous
    tensor in host memory with the values of its argument.

    Raises:
        CheckpointError: a value of another type, named by its path.
    """
    encoder = _Encoder(to_host)
    return Encoded(encoder.encode(tree, name, (), 0), encoder.tensors)


class _Encoder:
    def __init__(self, to_host: Callable[[Tensor], Tensor]) -> None:
        self._to_host = to_host
        self.tensors: dict[str, Tensor] = {}
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._alive: list[Any] = []
        self._by_type: dict[type, Callable[..., Any]] = {
            dict: self._dict,
            OrderedDict: self._ordered_dict,
            Counter: self._counter,
            deque: self._deque,
            Tensor: self._tensor,
            torch.nn.Parameter: self._tensor,
        }
        self._by_type.update(dict.fromkeys(_SEQUENCES, self._sequence))

    def encode(self, value: Any, where: str, keys: tuple[str, ...], depth: int) -> Any:
        kind = type(value)
        if kind in (str, bool) or value is None:
            return value
        if kind is int:
            plain = -_JSON_INT <= value < _JSON_INT
            return value if plain else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if kind is bytes:
            return {"$bytes": base64.b64encode(value).decode()}
        if depth > MAX_DEPTH:
            raise CheckpointError(
                f"{where} is nested deeper than {MAX_DEPTH} levels (or holds itself) "
                "and cannot be saved; flatten it"
            )
        if kind is list:
            return self._items(value, where, keys, depth)
        if kind in self._by_type:
            return self._by_type[kind](value, where, keys, depth)
        if isinstance(value, Tensor) and (is_spread(value) or not value.is_cpu):
            # a device that torch knows through Python has a tensor class of its own
            return self._tensor(value, where, keys, depth)
        if isinstance(value, (numpy.ndarray, numpy.generic)):
            return self._numpy(value, where, keys)
        raise CheckpointError(
            f"{where} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint "
            "cannot hold; give numbers, strings, tensors, arrays, or dicts and lists "
            "of them"
        )

    def _items(
        self, values: Any, where: str, keys: tuple[str, ...], depth: int
    ) -> list[Any]:
        return [
            self.encode(item, f"{where}[{index}]", (*keys, str(index)), depth + 1)
            for index, item in enumerate(values)
        ]

    def _sequence(self, value: Any, where: str, *at: Any) -> dict[str, Any]:
        items = self._items(value, where, *at)
        if isinstance(value, (set, frozenset)):
            items.sort(key=repr)  # the same set is the same file
        return {_SEQUENCES[type(value)]: items}

    def _deque(self, value: Any, where: str, *at: Any) -> dict[str, Any]:
        return {"$deque": [self._items(value, where, *at), value.maxlen]}

    def _dict(
        self, value: Any, where: str, keys: tuple[str, ...], depth: int
    ) -> dict[str, Any]:
        if any(type(key) is not str or key.startswith("$") for key in value):
            return {"$dict": self._pairs(value, where, keys, depth)}
        return {
            key: self.encode(item, f"{where}[{key!r}]", (*keys, key), depth + 1)
            for key, item in value.items()
        }

    def _pairs(
        self, value: Mapping[Any, Any], where: str, keys: tuple[str, ...], depth: int
    ) -> list[list[Any]]:
        pairs = []
        for key, item in value.items():
            here = f"{where}[{key!r}]"
            if isinstance(key, Tensor):
                raise CheckpointError(f"{where} has a tensor as a key; use a string")
            pairs.append(
                [
                    self.encode(key, f"key {key!r} of {where}", keys, depth + 1),
                    self.encode(item, here, (*keys, str(key)), depth + 1),
                ]
            )
        return pairs

    def _ordered_dict(self, value: Any, where: str, *at: Any) -> dict[str, Any]:
        result: dict[str, Any] = {"$odict": self._pairs(value, where, *at)}
        metadata = getattr(value, "_metadata", None)  # versions, by torch's modules
        if metadata is not None:
            keys, depth = at
            below = f"{where}._metadata"
            result["metadata"] = self.encode(metadata, below, keys, depth + 1)
        return result

    def _counter(self, value: Any, where: str, *at: Any) -> dict[str, Any]:
        return {"$counter": self._pairs(value, where, *at)}

    def _tensor(
        self, value: Tensor, where: str, keys: tuple[str, ...], depth: int
    ) -> dict[str, Any]:
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
            kind = "quantized" if value.is_quantized else kind
            raise CheckpointError(
                f"{where} is a {kind} tensor, which a checkpoint cannot hold; "
                "give a dense one"
            )
        identity = _identity(value)
        if identity in self._known:
            return self._known[identity]
        plain = value.detach()
        if not is_spread(plain):
            plain = plain.resolve_conj().resolve_neg()
        reference: dict[str, Any] = {}
        if not plain.is_contiguous() and is_dense(plain.shape, plain.stride()):
            reference["stride"] = list(plain.stride())
        host = plain if is_spread(plain) else self._to_host(plain)
        if host.dtype not in tensorfile.STORED and not is_spread(plain):
            reference["dtype"] = str(host.dtype).removeprefix("torch.")
            reference["shape"] = list(host.shape)
            host = host.reshape(-1).view(torch.uint8)
        name = self._free_name(keys)
        self.tensors[name] = host
        encoded: dict[str, Any] = {"$tensor": name, **reference}
        if value.numel():
            self._known[identity] = encoded
            self._alive.append(value)  # an address means something while it lives
        return encoded

    def _numpy(self, value: Any, where: str, keys: tuple[str, ...]) -> dict[str, Any]:
        dtype = value.dtype
        known = dtype.kind in "biufcSUMm" and not dtype.hasobject and not dtype.names
        is_array = type(value) is numpy.ndarray
        if not known or not (is_array or isinstance(value, numpy.generic)):
            raise CheckpointError(
                f"{where} is a NumPy {type(value).__name__} of {dtype}, which a "
                "checkpoint cannot hold; give plain numbers, booleans or strings"
            )
        data = value.tobytes()
        if not is_array:
            encoded = base64.b64encode(data).decode()
            return {"$scalar": {"dtype": dtype.str, "data": encoded}}
        name = self._free_name(keys)
        self.tensors[name] = torch.empty(len(data), dtype=torch.uint8)
        if data:
            self.tensors[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        shape = list(value.shape)
        return {"$array": {"dtype": dtype.str, "shape": shape, "data": name}}

    def _free_name(self, keys: tuple[str, ...]) -> str:
        """The path of a tensor as its name in the file, unlike any other."""
        wanted = "/".join(keys) or "value"
        wanted = wanted.encode("utf-8", "backslashreplace").decode()
        if wanted == "__metadata__":  # reserved by the format
            wanted = "metadata"
        name, count = wanted, 1
        while name in self.tensors:
            count += 1
            name = f"{wanted}#{count}"
        return name


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    if is_spread(tensor):  # its own storage is a stand-in without memory
        local = tensor.to_local()  # type: ignore[attr-defined]
        if not local.numel():  # nothing of it is here
            return (id(tensor),)
        return (*_identity(local), tuple(tensor.shape))
    return (
        tensor.device,
        # without an address there (an emulated device) every tensor is its own
        tensor.untyped_storage().data_ptr() or id(tensor),
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def is_dense(shape: Any, stride: Any) -> bool:
    """Whether the elements fill their memory without gaps or overlap."""
    expected = 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size != 1:
            if step != expected:
                return False
            expected *= size
    return True
