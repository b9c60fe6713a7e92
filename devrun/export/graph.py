"""The nodes of a graph of ONNX while it is made, in opset 12."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

TYPES = {
    torch.float32: TensorProto.FLOAT,
    torch.float64: TensorProto.DOUBLE,
    torch.float16: TensorProto.FLOAT16,
    torch.int64: TensorProto.INT64,
    torch.int32: TensorProto.INT32,
    torch.bool: TensorProto.BOOL,
    torch.uint8: TensorProto.UINT8,
}


class NoOperatorError(Exception):
    """An operator that ONNX has not, or this file not."""

    def __init__(self, name: str, trace: str | None) -> None:
        super().__init__(name)
        self.name, self.trace = name, trace


class Value:
    """A tensor in the graph that is being made."""

    def __init__(self, name: str, of: Tensor) -> None:
        self.name, self.shape, self.dtype = name, list(of.shape), of.dtype


class Graph:
    """Nodes and constants of ONNX; what is computed twice is one node."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.opposite: dict[str, str] = {}
        """Name of a negation -> of what it negates."""
        self.place: str | None = None
        """The lines of Python that made what is being lowered."""
        self.places: dict[str, str | None] = {}
        self._made: dict[Any, str] = {}

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The output of such a node."""
        key = (kind, inputs, repr(sorted(attributes.items())))
        if key not in self._made:
            name = f"{kind}_{len(self.nodes)}"
            self.nodes.append(
                helper.make_node(kind, inputs, [name], name, **attributes)
            )
            self._made[key], self.places[name] = name, self.place
        return self._made[key]

    def constant(self, values: Any, dtype: torch.dtype) -> str:
        tensor = torch.as_tensor(values, dtype=dtype).contiguous()
        if dtype is torch.bool:  # importers refuse such initializers
            number = self.constant(tensor, torch.float32)
            return self.add("Greater", number, self.constant(0.5, torch.float32))
        array = tensor.numpy()
        key = (array.tobytes(), array.shape, dtype)
        if key not in self._made:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = numpy_helper.from_array(array, name)
            self._made[key] = name
        return self._made[key]

    def shape(self, sizes: Iterable[int]) -> str:
        return self.constant(list(sizes), torch.int64)

    def reshaped(self, name: str, sizes: Sequence[int]) -> str:
        return self.add("Reshape", name, self.shape(sizes))

    def cast(self, value: Any, dtype: torch.dtype) -> str:
        """`value`, a tensor or a number, in that type."""
        if not isinstance(value, Value):
            return self.constant(value, dtype)
        if value.dtype is dtype:
            return value.name
        return self.add("Cast", value.name, to=TYPES[dtype])

    def expanded(self, value: Any, like: Value) -> str:
        """`value` in the shape of `like`: importers broadcast little."""
        name = self.cast(value, like.dtype)
        if (value.shape if isinstance(value, Value) else []) == like.shape:
            return name
        return self.add("Expand", name, self.shape(like.shape))

    def negated(self, name: str) -> str:
        made = self.add("Not", name)
        self.opposite[made] = name
        return made

    def sliced(self, name: str, dim: int, start: int, end: int, step: int = 1) -> str:
        window = [self.shape([number]) for number in (start, end, dim, step)]
        return self.add("Slice", name, *window)
