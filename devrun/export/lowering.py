"""A graph of PyTorch's operators as one of ONNX, in opset 12.

For what `torch.onnx` cannot write in that opset: graphs with a backward pass. Shapes
are fixed, so all that depends on them alone is computed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import torch
from onnx import helper
from torch import Tensor, fx

from devrun.export.graph import TYPES, Graph, NoOperatorError, Value
from devrun.export.rules import RULES

OPSET, IR = 12, 7
"""IR 7 came with opset 12, https://onnx.ai/onnx/repo-docs/Versioning.html."""
_FILLED = {
    "full_like": None, "new_full": None, "zeros_like": 0, "new_zeros": 0,
    "ones_like": 1, "new_ones": 1,
}  # fmt: skip
"""They take a tensor for its shape alone -> the number; None: their last argument."""


def lowered(
    module: fx.GraphModule, inputs: Sequence[str], outputs: Mapping[str, fx.Node]
) -> tuple[Any, dict[str, str | None]]:
    """`module` as a model of ONNX, its inputs and outputs named so, and the lines of
    Python that each of its nodes is from.

    Raises:
        NoOperatorError: an operator has no rule here.
    """
    graph, values = Graph(), {}
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, name in zip(places, inputs):
        values[node] = Value(name, node.meta["val"])
    for node in needed(module, outputs.values()):
        if node not in values:
            graph.place = node.meta.get("stack_trace")
            values[node] = _value_of(graph, module, node, values)
    for name, node in outputs.items():
        held = _in_graph(graph, values[node]).name
        graph.nodes.append(helper.make_node("Identity", [held], [name], name))
    made = helper.make_graph(
        graph.nodes,
        "step",
        [_described(name, node) for node, name in zip(places, inputs)],
        [_described(name, node) for name, node in outputs.items()],
        list(graph.constants.values()),
    )
    stamp = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, opset_imports=stamp, ir_version=IR)
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    onnx.checker.check_model(model)
    return model, graph.places


def needed(module: fx.GraphModule, results: Iterable[fx.Node]) -> list[fx.Node]:
    """What `results` depend on, in order."""
    found, left = set(), list(results)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
            left += [] if name in _FILLED else node.all_input_nodes
    return [node for node in module.graph.nodes if node in found]


def _described(name: str, node: fx.Node) -> Any:
    of = node.meta["val"]
    return helper.make_tensor_value_info(name, TYPES[of.dtype], list(of.shape))


def _value_of(
    graph: Graph, module: fx.GraphModule, node: fx.Node, values: Mapping[fx.Node, Any]
) -> Any:
    """The output of `node`, or a list of several; a tensor where it is constant."""
    if node.op == "get_attr":
        return getattr(module, str(node.target))
    given = [values.get(one) for one in node.all_input_nodes]
    target: Any = node.target
    name = getattr(getattr(target, "overloadpacket", None), "__name__", str(target))
    if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
        raise NoOperatorError(f"{name}, which draws random numbers", graph.place)
    known = name in _FILLED or not any(isinstance(one, (Value, list)) for one in given)
    if known and (name in _FILLED or target.__module__ != "_operator"):
        return _computed(graph, name, node, values)
    if name not in RULES:
        if getattr(target, "__name__", "") == "getitem":
            source: Any = node.args[0]
            return values[source][node.args[1]]
        raise NoOperatorError(name, graph.place)
    of = node.meta["val"]
    several = isinstance(of, (list, tuple))
    out = [Value("", one) for one in of] if several else Value("", of)
    args, kwargs = fx.node.map_arg(
        (node.args, node.kwargs), lambda one: _in_graph(graph, values[one])
    )
    try:
        made = RULES[name](graph, out, *args, **kwargs)
    except TypeError:  # an argument that the rule does not know
        made = NotImplemented
    if made is NotImplemented:
        raise NoOperatorError(str(target), graph.place)
    if several:
        return [Value(one, part) for one, part in zip(made, of)]
    return Value(made, of)


def _in_graph(graph: Graph, held: Any) -> Any:
    if isinstance(held, Tensor):
        return Value(graph.constant(held, held.dtype), held)
    return held


def _computed(
    graph: Graph, name: str, node: fx.Node, values: Mapping[fx.Node, Any]
) -> Tensor:
    """The value of a node that depends on no input."""
    of = node.meta["val"]
    if name in _FILLED:
        number = _FILLED[name]
        filled: Any = node.args[-1] if number is None else number
        return torch.full(of.shape, filled, dtype=of.dtype)
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda one: values[one])
    target: Any = node.target
    made: Tensor = target(*args, **kwargs)
    return made
