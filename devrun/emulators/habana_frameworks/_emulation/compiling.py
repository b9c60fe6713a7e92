"""A backend of torch.compile: counts what would be compiled, runs it uncompiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from habana_frameworks._emulation.pinning import METHODS
from habana_frameworks._emulation.regions import Region, watch_backward
from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks._emulation.sites import know_graph
from habana_frameworks._emulation.torch_private import register_backends

WATCHERS: list[list[Counter[str]]] = []
"""Lists that get the operators of each graph, by `FxGraphAnalyzer`."""
_regions: list[Region] = []
NAMES = ("hpu_backend", "aot_hpu_training_backend", "aot_hpu_inference_backend")


def hpu_backend(
    graph_module: Any, example_inputs: Any, **options: Any
) -> Callable[..., Any]:
    """Run `graph_module` as one region; RuntimeError in lazy mode."""
    if SETTINGS.lazy:
        raise RuntimeError(
            "hpu_backend needs PT_HPU_LAZY_MODE=0, set before the SDK is imported"
        )
    calls = [n for n in graph_module.graph.nodes if n.op.startswith("call")]
    for watcher in WATCHERS:
        watcher.append(Counter(str(n.target) for n in calls))
    watch_backward()
    know_graph(graph_module)
    region = Region(len(_regions), len(calls))
    _regions.append(region)

    def run(*args: Any) -> Any:
        return region.run(graph_module.forward, args)

    return run


def install() -> None:
    """Make the names known to torch.compile and keep it from tracing the emulator.

    Called at the first torch.compile: loading the compiler takes a second.
    """
    register_backends(hpu_backend, NAMES)
    torch.compiler.allow_in_graph([getattr(Tensor, name) for name in METHODS])
