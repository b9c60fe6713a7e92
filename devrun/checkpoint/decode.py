"""`decode_tree`: the values that `codec.encode_tree` wrote, from JSON and tensors.

The JSON may come from anywhere: every field is checked before it is used, nothing in
it is looked up by name outside fixed tables, and no size is believed that the tensors
at hand do not have.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from devrun.checkpoint.codec import MAX_DEPTH, is_dense
from devrun.errors import CheckpointError
from devrun.tensors import is_spread

_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_ARRAY_TYPE = re.compile(r"[<>|=]([biufcSUMm])\d{1,9}(\[[0-9A-Za-z]{1,16}\])?")
_VIEWED = {
    name: getattr(torch, name)
    for name in (
        "complex32",
        "complex64",
        "complex128",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
    )
    if hasattr(torch, name)
}
"""Types stored as bytes, because not every safetensors release supports them."""


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


class _Decoder:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._built: dict[str, Tensor] = {}
        self._by_tag: dict[str, Callable[[Any, int], Any]] = {
            "$float": lambda body, depth: _FLOATS[body],
            "$int": lambda body, depth: int(body, 16),
            "$bytes": lambda body, depth: _bytes(body),
            "$tuple": lambda body, depth: tuple(self._list(body, depth)),
            "$size": lambda body, depth: torch.Size(self._list(body, depth)),
            "$set": lambda body, depth: set(self._list(body, depth)),
            "$frozenset": lambda body, depth: frozenset(self._list(body, depth)),
            "$deque": self._deque,
            "$dict": lambda body, depth: dict(self._pairs(body, depth)),
            "$counter": lambda body, depth: Counter(dict(self._pairs(body, depth))),
            "$array": self._array,
            "$scalar": self._scalar,
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
        if tag == "$odict":
            return self._ordered_dict(value, depth)
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

    def _deque(self, body: Any, depth: int) -> deque[Any]:
        items, maxlen = body
        return deque(self._list(items, depth), maxlen)

    def _ordered_dict(self, value: dict[str, Any], depth: int) -> Any:
        if not value.keys() <= {"$odict", "metadata"}:
            raise ValueError("an ordered dict with unknown fields")
        result: Any = OrderedDict(self._pairs(value["$odict"], depth))
        if "metadata" in value:
            result._metadata = self.decode(value["metadata"], depth + 1)
        return result

    def _tensor(self, value: dict[str, Any]) -> Tensor:
        name = value["$tensor"]
        if name in self._built:
            return self._built[name]
        tensor = self._tensors[name]
        if not value.keys() <= {"$tensor", "stride", "dtype", "shape"}:
            raise ValueError(f"tensor {name!r} with unknown fields")
        if "dtype" in value:
            raw = tensor.reshape(-1)
            if raw.dtype is not torch.uint8:
                raise ValueError(f"tensor {name!r} is not stored as bytes")
            tensor = raw.view(_VIEWED[value["dtype"]]).reshape(_sizes(value["shape"]))
        if "stride" in value and not is_spread(tensor):
            stride = _sizes(value["stride"])
            if len(stride) != tensor.dim() or not is_dense(tensor.shape, stride):
                raise ValueError(f"tensor {name!r} with strides that leave gaps")
            strided = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype)
            tensor = strided.copy_(tensor)
        self._built[name] = tensor
        return tensor

    def _array(self, body: Any, depth: int) -> Any:
        data = self._tensors[body["data"]]
        if data.dtype is not torch.uint8:
            raise ValueError("an array that is not stored as bytes")
        array = _from_bytes(data.numpy().tobytes(), body["dtype"])
        return array.reshape(_sizes(body["shape"]))

    def _scalar(self, body: Any, depth: int) -> Any:
        array = _from_bytes(_bytes(body["data"]), body["dtype"])
        if array.size == 0 and array.dtype.kind in "SU":
            return array.dtype.type()  # an empty string has no bytes
        if array.size != 1:
            raise ValueError("a scalar of another size than one")
        return array[0]


def _bytes(body: Any) -> bytes:
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ValueError("bytes that are not base64") from error


def _sizes(body: Any) -> list[int]:
    if not isinstance(body, list) or not all(
        type(size) is int and size >= 0 for size in body
    ):
        raise ValueError(f"{body!r} is no shape")
    return body


def _from_bytes(data: bytes, dtype: Any) -> Any:
    if not isinstance(dtype, str) or not _ARRAY_TYPE.fullmatch(dtype):
        raise ValueError(f"{dtype!r} is no type of a NumPy value")
    kind = numpy.dtype(dtype)
    if kind.itemsize == 0:
        return numpy.zeros(0, kind)
    return numpy.frombuffer(bytearray(data), dtype=kind)
