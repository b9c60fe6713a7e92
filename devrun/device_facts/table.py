"""The devices of this package, and those that others offer."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata

from devrun.device_facts.facts import DeviceFacts

ENTRY_POINT_GROUP = "devrun.device_facts"

_HERE = "devrun.device_facts"
ADAPTERS = {
    "cpu": "devrun.devices.cpu:CPUAdapter",
    "cuda": "devrun.devices.cuda:CUDAAdapter",
    "mps": "devrun.devices.generic:MPSAdapter",
    "xpu": "devrun.devices.generic:XPUAdapter",
    "npu": "devrun.devices.generic:NPUAdapter",
    "accelerator": "devrun.devices.generic:GenericAdapter",
    "hpu": "devrun.devices.hpu.adapter:HPUAdapter",
    "ipu": "devrun.devices.ipu.adapter:IPUAdapter",
}
"""Name -> adapter, both of this package."""
_IN_TREE = {
    "cpu": f"{_HERE}.cpu:FACTS",
    "cuda": f"{_HERE}.cuda:FACTS",
    "mps": f"{_HERE}.generic:MPS",
    "xpu": f"{_HERE}.generic:XPU",
    "npu": f"{_HERE}.generic:NPU",
    "accelerator": f"{_HERE}.generic:ACCELERATOR",
    "hpu": f"{_HERE}.hpu:FACTS",
    "ipu": f"{_HERE}.ipu:FACTS",
}


class _Facts(Mapping[str, DeviceFacts]):
    """Read when something is asked of them: others' are imported only then."""

    def __getitem__(self, name: str) -> DeviceFacts:
        return _loaded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_loaded())

    def __len__(self) -> int:
        return len(_loaded())


FACTS: Mapping[str, DeviceFacts] = _Facts()
"""Device -> facts, of this package and of others."""


def own_facts() -> dict[str, DeviceFacts]:
    """Those of this package."""
    return {name: _load(target) for name, target in _IN_TREE.items()}


@cache
def _loaded() -> dict[str, DeviceFacts]:
    found = own_facts()
    for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(point.name, _load(point.value))
    return found


def _load(target: str) -> DeviceFacts:
    module, _, name = target.partition(":")
    facts: DeviceFacts = getattr(importlib.import_module(module), name)
    return facts
