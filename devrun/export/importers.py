"""What other compilers take of ONNX, and what they get wrong without saying so.

Both tables are of the importers' sources: NNFusion's
src/nnfusion/frontend/onnx_import (ops_bridge.cpp, op/) at 00c13173, and HALO's
include/halo/lib/ir/onnx_convert.td with lib/transforms/onnxextension_legalizer.cc at
966d4aa8. onnxruntime needs no table: it refuses by name what it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable

from onnx import TensorProto, helper, numpy_helper

NNFUSION = """
    Abs Acos AdamOptimizer Add And ArgMin Asin Atan AveragePool BatchNormalization Cast
    Ceil Clip Concat Constant ConstantOfShape Conv ConvTranspose Cos CumSum DepthToSpace
    Div Dropout Equal Erf Exp Expand Flatten Floor GRU Gather Gelu Gemm
    GlobalAveragePool GlobalMaxPool Greater Identity LSTM LayerNormalization LeakyRelu
    Less Log LogSoftmax MatMul Max MaxPool Min Mul Neg NonZero Not OneHot Or Pad Pow
    Range ReduceL2 ReduceMean ReduceSum Relu Reshape Resize ScatterND Shape Sigmoid Sin
    Slice Softmax SoftmaxCrossEntropyLoss Split Sqrt Squeeze Sub Sum Tan Tanh Tile
    Transpose Unsqueeze Upsample Where
"""
HALO = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool
    BatchNormalization BitShift Cast Ceil Celu Clip Compress Concat Constant
    ConstantOfShape Conv ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear Det
    Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand EyeLike Flatten
    Floor GRU Gather GatherElements GatherND Gemm GlobalAveragePool GlobalMaxPool
    Greater GreaterOrEqual HardSigmoid Hardmax Identity If InstanceNormalization IsInf
    IsNaN LRN LSTM LeakyRelu Less LessOrEqual Log LogSoftmax Loop MatMul Max MaxPool
    Mean Min Mod Mul Neg NonMaxSuppression NonZero Not OneHot Or PRelu Pad Pow
    QuantizeLinear RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape
    Resize Round Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus
    Softsign Split Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose
    Unsqueeze Upsample Where Xor
"""


@dataclass(frozen=True)
class Node:
    """One of a graph, with what is known of its inputs."""

    name: str
    kind: str
    inputs: list[str]
    shapes: list[Any]
    values: list[Any]
    """Of inputs that are constant; of others None."""
    attributes: Mapping[str, Any]


Fault = Callable[[Node], bool]


def _uneven(node: Node) -> bool:
    pads = node.attributes.get("pads", [])
    half = len(pads) // 2
    return bool(list(pads[:half]) != list(pads[half:]))


def _unlike(node: Node) -> bool:
    return any(shape != node.shapes[0] for shape in node.shapes)


def _by_input(node: Node) -> bool:
    return len(node.inputs) > 1


def _not_last(node: Node) -> bool:
    rank = len(node.shapes[0])
    return bool(node.attributes.get("axis", 1) % rank != rank - 1)


def _dilated(node: Node) -> bool:
    ignored = any(number != 1 for number in node.attributes.get("dilations", []))
    return ignored or bool(node.attributes.get("ceil_mode"))


def _backwards(node: Node) -> bool:
    return any(
        value is not None and value.size and value.min() < 0
        for value in node.values[1:]
    )


def _unordered(node: Node) -> bool:
    axes = node.values[3] if len(node.values) > 3 else None
    return axes is not None and list(axes) != sorted(abs(axis) for axis in axes)


def _trains(node: Node) -> bool:
    return True


_REDUCED = "ReduceSum ReduceMean ReduceL2 Squeeze Unsqueeze"
_WINDOWS = "AveragePool MaxPool"
_BOTH: list[tuple[str, Fault, str]] = [
    ("Softmax LogSoftmax", _not_last, "reduces that axis, not all from it on"),
    ("Dropout BatchNormalization", _trains, "computes as in evaluation"),
]
SILENT: dict[str, list[tuple[str, Fault, str]]] = {
    "nnfusion": [
        (_REDUCED, _by_input, "ignores axes that are an input, and takes all"),
        ("Where Min", _unlike, "does not broadcast its inputs"),
        ("Max Min", lambda node: len(node.inputs) > 2, "drops all inputs after two"),
        (f"Conv {_WINDOWS}", _uneven, "swaps paddings that are not symmetric"),
        (_WINDOWS, _dilated, "ignores dilations and ceil_mode"),
        ("Slice", _backwards, "clamps negative bounds and steps"),
        ("Pad", _by_input, "pads with 0, whatever the value"),
        ("ConvTranspose", _trains, "ignores output_padding and output_shape"),
        ("OneHot", _trains, "makes integers, whatever the type of the values"),
        *_BOTH,
    ],
    "halo": [
        ("Pad", _by_input, "ignores paddings that are an input, and copies"),
        ("Slice", _unordered, "pairs bounds with the sorted axes"),
        ("Split", _by_input, "ignores sizes that are an input"),
        *_BOTH,
    ],
    "onnxruntime": [],
}
"""Importer -> (operators, when, what it does then)."""
TABLES = {"nnfusion": NNFUSION.split(), "halo": HALO.split(), "onnxruntime": None}
"""Importer -> the operators that it takes; None for those of ONNX."""
EMPTY_KERNELS = {"nnfusion": ["Gather", "Erf", "ConvTranspose"]}
"""Operators for which the code that it makes for CPUs computes nothing."""


def refused_by(importer: str, model: Any) -> Iterator[tuple[str, str]]:
    """Nodes of `model`, whose shapes are known, that `importer` would not compute as
    ONNX says, each with why."""
    table = TABLES[importer]
    for node in nodes_of(model):
        if table is not None and node.kind not in table:
            yield node.name, f"{importer} has no operator {node.kind}"
        for kinds, fault, why in SILENT[importer]:
            if node.kind in kinds.split() and fault(node):
                yield node.name, f"{importer} {why} ({node.kind})"
    if importer == "nnfusion":
        for value in model.graph.initializer:
            if value.data_type == TensorProto.BOOL:
                yield value.name, f"{importer} takes no boolean constant"


def nodes_of(model: Any) -> Iterator[Node]:
    graph = model.graph
    values = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    shapes = {name: list(value.shape) for name, value in values.items()}
    for info in (*graph.input, *graph.value_info, *graph.output):
        dims = info.type.tensor_type.shape.dim
        shapes[info.name] = [dim.dim_value for dim in dims]
    for node in graph.node:
        named = [name for name in node.input if name]
        yield Node(
            node.name,
            node.op_type,
            named,
            [shapes.get(name) for name in named],
            [values.get(name) for name in named],
            {one.name: helper.get_attribute_value(one) for one in node.attribute},
        )
