"""A compiled model's operations, one by one, without running it.

torch's tracer goes through the step as it does to compile it: Python code is followed,
not executed, so that nothing outside is changed and no random number is drawn. What it
finds is done on tensors that have shapes and no data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from devrun.blame import cause_of
from devrun.models.step_module import StepModule

NAME = "traced_step"
"""The function that the tracer is given, by which its records are told apart."""


class _StopError(Exception):
    """Ends what would go on to compile or to run."""


def trace(step: StepModule, batch: Any, mode: Any) -> str | None:
    """Show a forward and backward pass in training to a `TorchDispatchMode`.

    Returns:
        Why that cannot be done, or None. `mode` may then have seen part of it.
    """
    said: list[str | None] = []

    def backend(graph: fx.GraphModule, _: Any) -> Any:
        try:
            _forward_backward(graph, mode)
        except Exception as error:  # noqa: BLE001 - as below
            said.append(cause_of(error))
        else:
            said.append(None)
        raise _StopError

    def traced_step(batch: Any) -> Any:
        if not torch.compiler.is_compiling():  # a setting that turns compilers off
            raise _StopError("nothing is compiled here")
        return step(batch, "train")["loss"]

    look: Any = torch.compile(
        traced_step, backend=backend, fullgraph=True, dynamic=False
    )
    try:
        look(batch)
    except Exception as error:  # noqa: BLE001 - of a look, which must not end a run
        said.append(str(error).strip().partition("\n")[0])
    return said[0]


def _forward_backward(graph: fx.GraphModule, mode: Any) -> None:
    # as of checkpointed blocks: what is in them would not be seen
    if any(isinstance(part, fx.GraphModule) for part in graph.children()):
        raise NotImplementedError("it has operations that contain others")
    nodes = (node for node in graph.graph.nodes if node.op == "placeholder")
    inputs = [node.meta["example_value"] for node in nodes]
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    with tensors[0].fake_mode, mode:  # type: ignore[attr-defined]
        outputs = graph(*inputs)
        losses = [out for out in outputs if isinstance(out, Tensor)]
        torch.autograd.grad(
            [loss.sum() for loss in losses if loss.requires_grad],
            [value for value in tensors if value.requires_grad],
            allow_unused=True,
        )
