"""A look at what torch.compile handed to the backend."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from habana_frameworks._emulation import compiling


@dataclass
class OpCount:
    """How often an operator is in a graph, and how often it was left out of it."""

    graph_count: int = 0
    eager_count: int = 0


class FxGraphAnalyzer:
    """Context manager: the graphs compiled inside.

    Names are those of torch's functions: this backend gets graphs before torch lowers
    them to operators, and leaves nothing out of them.
    """

    def __init__(
        self, reset_dynamo: bool = False, capture_non_hpu_output: bool = False
    ) -> None:
        self.reset_dynamo = reset_dynamo
        self._graphs: list[Counter[str]] = []

    def __enter__(self) -> FxGraphAnalyzer:
        if self.reset_dynamo:
            torch.compiler.reset()
        compiling.WATCHERS.append(self._graphs)
        return self

    def __exit__(self, *exc: object) -> None:
        compiling.WATCHERS.remove(self._graphs)

    def get_ops_summary(self) -> list[dict[str, OpCount]]:
        """One entry for each graph: operator -> count."""
        return [{k: OpCount(n) for k, n in graph.items()} for graph in self._graphs]
