"""A pass-through backend of torch.compile: counts graphs, runs them uncompiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from habana_frameworks._emulation.recorder import RECORDER
from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks._emulation.sites import user_site

WATCHERS: list[list[Counter[str]]] = []
"""Lists that get the operators of each graph, by `FxGraphAnalyzer`."""
NAMES = ("hpu_backend", "aot_hpu_training_backend", "aot_hpu_inference_backend")


def hpu_backend(
    graph_module: Any, example_inputs: Any, **options: Any
) -> Callable[..., Any]:
    """Count one compilation; RuntimeError in lazy mode, which excludes compiling."""
    if SETTINGS.lazy:
        raise RuntimeError(
            "hpu_backend needs PT_HPU_LAZY_MODE=0, set before the SDK is imported"
        )
    calls = [n for n in graph_module.graph.nodes if n.op.startswith("call")]
    for watcher in WATCHERS:
        watcher.append(Counter(str(n.target) for n in calls))
    number = RECORDER.totals["compilation"]
    site = user_site()
    RECORDER.compilation("torch.compile", f"compiled_{number}", len(calls), site)
    forward: Callable[..., Any] = graph_module.forward
    return forward


def install() -> None:
    """Make the names known to torch.compile and keep it from tracing the emulator.

    Called at the first torch.compile: loading torch._dynamo takes a second.
    """
    from torch._dynamo import list_backends, register_backend, trace_rules

    trace_rules.add("habana_frameworks")

    known = set(list_backends(exclude_tags=()))
    for name in NAMES:
        if name not in known:
            register_backend(name=name)(hpu_backend)
