"""`encode_tree` and `decode_tree`: nested Python values as strict JSON plus tensors.

JSON's own values stand for themselves. Everything else is an object with one key
that begins with `$` and names its kind:

    {"$tensor": "name"}            a tensor of the safetensors file beside it; with
                                   `dtype` and `shape` when the file cannot say them
    {"$float": "nan"}              also "inf", "-inf"
    {"$int": "0x..."}              beyond 64 bits
    {"$bytes": "base64"}
    {"$tuple": [...]}              also $set
    {"$dict": [[key, value]...]}   a dict with other keys than plain strings
    {"$array": [dtype, shape, "base64"]}   of NumPy; $scalar is one of its numbers

Two tensors that are the same view of one storage are stored once and come back as
one object, so tied weights stay tied. Other tensors that share memory come back
equal, each with memory of its own. An OrderedDict comes back as a dict. No value names
anything to import or call.

The JSON that is decoded may come from anywhere: every field is checked before it is
used, nothing in it is looked up by name outside fixed tables, and no size is believed
that the data at hand do not have.
"""

from __future__ import annotations

import base64
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor

from devrun.checkpoint import tensorfile
from devrun.errors import CheckpointError
from devrun.python38 import unprefixed
from devrun.tensors import is_spread, tensors_in

MAX_DEPTH = 64
_JSON_INT = 1 << 63
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_ARRAY_KINDS = "biufc"
_ARRAY_TYPE = re.compile(rf"[<>|][{_ARRAY_KINDS}]\d{{1,2}}")
_VIEWED = {"complex64": torch.complex64, "complex128": torch.complex128}
"""Types stored as bytes, because not every safetensors release supports them."""


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
    encoder = _Encoder(name, to_host)
    return Encoded(encoder.encode(tree), encoder.tensors)


def decode_tree(tree: Any, tensors: Mapping[str, Tensor], name: str = "tree") -> Any:
    """The value that `encode_tree` was given, up to tensors being on the CPU.

    Raises:
        CheckpointError: nothing that `encode_tree` writes; `name` says which part.
    """
    try:
        return _Decoder(tensors).decode(tree, 0)
    except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise CheckpointError(f"{name} is malformed: {reason}") from error


class _Encoder:
    """Every method takes a value and the keys that lead to it."""

    def __init__(self, name: str, to_host: Callable[[Tensor], Tensor]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._name = name
        self._to_host = to_host
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._alive: list[Tensor] = []

    def encode(self, value: Any, keys: tuple[Any, ...] = ()) -> Any:
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
        if len(keys) > MAX_DEPTH:
            raise self._error(
                keys,
                f"is nested deeper than {MAX_DEPTH} levels (or holds itself) and "
                "cannot be saved; flatten it",
            )
        if kind is list:
            return self._items(value, keys)
        if kind is tuple:
            return {"$tuple": self._items(value, keys)}
        if kind is set:  # the same set is the same file
            return {"$set": sorted(self._items(value, keys), key=repr)}
        if kind in (dict, OrderedDict):
            return self._dict(value, keys)
        if isinstance(value, Tensor) and not _is_foreign(value):
            return self._tensor(value, keys)
        if kind is numpy.ndarray or isinstance(value, numpy.generic):
            return self._array(value, keys)
        raise self._error(
            keys,
            f"is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot "
            "hold; give numbers, strings, tensors, arrays, or dicts and lists of them",
        )

    def _error(self, keys: tuple[Any, ...], reason: str) -> CheckpointError:
        path = "".join(f"[{key!r}]" for key in keys)
        return CheckpointError(f"{self._name}{path} {reason}")

    def _items(self, values: Any, keys: tuple[Any, ...]) -> list[Any]:
        return [self.encode(item, (*keys, index)) for index, item in enumerate(values)]

    def _dict(self, value: Mapping[Any, Any], keys: tuple[Any, ...]) -> dict[str, Any]:
        if any(isinstance(key, Tensor) for key in value):
            raise self._error(keys, "has a tensor as a key; use a string")
        made = {key: self.encode(item, (*keys, key)) for key, item in value.items()}
        if all(type(key) is str and not key.startswith("$") for key in value):
            return made
        pairs = [[self.encode(key, (*keys, key)), made[key]] for key in made]
        return {"$dict": pairs}

    def _array(self, value: Any, keys: tuple[Any, ...]) -> dict[str, Any]:
        dtype = value.dtype
        if dtype.kind not in _ARRAY_KINDS:
            raise self._error(
                keys,
                f"is a NumPy {type(value).__name__} of {dtype}, which a checkpoint "
                "cannot hold; give numbers, booleans or plain strings",
            )
        tag = "$array" if isinstance(value, numpy.ndarray) else "$scalar"
        data = base64.b64encode(value.tobytes()).decode()
        return {tag: [dtype.str, list(value.shape), data]}

    def _tensor(self, value: Tensor, keys: tuple[Any, ...]) -> dict[str, Any]:
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            kind = "meta" if value.is_meta else unprefixed(str(value.layout), "torch.")
            kind = "quantized" if value.is_quantized else kind
            raise self._error(
                keys,
                f"is a {kind} tensor, which a checkpoint cannot hold; give a dense one",
            )
        identity = _identity(value)
        if identity in self._known:
            return self._known[identity]
        host = value.detach()
        reference: dict[str, Any] = {}
        if not is_spread(host):
            host = self._to_host(host.resolve_conj().resolve_neg())
            if host.dtype not in tensorfile.STORED:
                if host.dtype not in _VIEWED.values():
                    raise self._error(keys, f"is of {host.dtype}; convert it")
                reference["dtype"] = unprefixed(str(host.dtype), "torch.")
                reference["shape"] = list(host.shape)
                host = host.reshape(-1).view(torch.uint8)
        name = self._free_name(keys)
        self.tensors[name] = host
        encoded: dict[str, Any] = {"$tensor": name, **reference}
        if value.numel():
            self._known[identity] = encoded
            self._alive.append(value)  # an address means something while it lives
        return encoded

    def _free_name(self, keys: tuple[Any, ...]) -> str:
        """The path of a tensor as its name in the file, unlike any other."""
        wanted = "/".join(map(str, keys)) or "value"
        wanted = wanted.encode("utf-8", "backslashreplace").decode()
        if wanted == "__metadata__":  # reserved by the format
            wanted = "metadata"
        name, count = wanted, 1
        while name in self.tensors:
            count += 1
            name = f"{wanted}#{count}"
        return name


def _is_foreign(value: Tensor) -> bool:
    """Whether it is of a tensor class of a user's own.

    A device that torch knows through Python has a class of its own, too.
    """
    known = type(value) in (Tensor, torch.nn.Parameter)
    return not (known or is_spread(value) or not value.is_cpu)


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    if is_spread(tensor):  # its own storage is a stand-in without memory
        local = tensor.to_local()  # type: ignore[attr-defined]
        if not local.numel():  # nothing of it is here
            return (id(tensor),)
        return (*_identity(local), tuple(tensor.shape))
    try:
        address = tensor.untyped_storage().data_ptr()
    except RuntimeError:  # of a device that torch knows through Python
        address = 0
    return (
        tensor.device,
        address or id(tensor),  # without an address every tensor is its own
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )


class _Decoder:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._built: dict[str, Tensor] = {}
        self._by_tag: dict[str, Callable[[Any, int], Any]] = {
            "$float": lambda body, depth: _FLOATS[body],
            "$int": lambda body, depth: int(body, 16),
            "$bytes": lambda body, depth: base64.b64decode(body, validate=True),
            "$tuple": lambda body, depth: tuple(self._list(body, depth)),
            "$set": lambda body, depth: set(self._list(body, depth)),
            "$dict": lambda body, depth: dict(self._pairs(body, depth)),
            "$array": lambda body, depth: _array(*body),
            "$scalar": lambda body, depth: _array(*body)[()],
        }

    def decode(self, value: Any, depth: int) -> Any:
        if depth > 2 * MAX_DEPTH:
            raise ValueError("nested too deeply")
        if isinstance(value, list):
            return self._list(value, depth)
        if not isinstance(value, dict):
            return value
        tag = next((key for key in value if key.startswith("$")), None)
        if tag is None:
            return {key: self.decode(item, depth + 1) for key, item in value.items()}
        if tag == "$tensor":
            return self._tensor(value)
        if tag not in self._by_tag or len(value) != 1:
            raise ValueError(f"{tag!r} is not known to this version of devrun")
        return self._by_tag[tag](value[tag], depth)

    def _list(self, body: Any, depth: int) -> list[Any]:
        if not isinstance(body, list):
            raise TypeError("a list was expected")
        return [self.decode(item, depth + 1) for item in body]

    def _pairs(self, body: Any, depth: int) -> list[tuple[Any, Any]]:
        if not isinstance(body, list):
            raise TypeError("pairs were expected")
        pairs = []
        for key, item in body:
            pairs.append((self.decode(key, depth + 1), self.decode(item, depth + 1)))
        return pairs

    def _tensor(self, value: dict[str, Any]) -> Tensor:
        name = value["$tensor"]
        if name in self._built:
            return self._built[name]
        tensor = self._tensors[name]
        if not value.keys() <= {"$tensor", "dtype", "shape"}:
            raise ValueError(f"tensor {name!r} with unknown fields")
        if "dtype" in value:
            raw = tensor.reshape(-1)
            if raw.dtype is not torch.uint8:
                raise ValueError(f"tensor {name!r} is not stored as bytes")
            tensor = raw.view(_VIEWED[value["dtype"]]).reshape(_sizes(value["shape"]))
        self._built[name] = tensor
        return tensor


def _sizes(body: Any) -> list[int]:
    if not isinstance(body, list) or not all(
        type(size) is int and size >= 0 for size in body
    ):
        raise ValueError(f"{body!r} is no shape")
    return body


def _array(dtype: Any, shape: Any, data: Any) -> Any:
    if not isinstance(dtype, str) or not _ARRAY_TYPE.fullmatch(dtype):
        raise ValueError(f"{dtype!r} is no type of a NumPy value")
    sizes, content = _sizes(shape), base64.b64decode(data, validate=True)
    if not content and 0 not in sizes:
        raise ValueError(f"an array of shape {sizes} without data")
    kind = numpy.dtype(dtype)
    if not content:  # NumPy reads nothing from nothing
        return numpy.zeros(sizes, kind)
    return numpy.frombuffer(bytearray(content), kind).reshape(sizes)
