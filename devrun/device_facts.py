"""What is known of each device before its adapter is imported.

Packages with devices of their own offer theirs as entry points of
`devrun.device_facts`, `mydev = "mypackage.facts:FACTS"`. Configs, resumes and `auto`
ask here, and know no device by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Mapping

from devrun.python38 import entry_points

ENTRY_POINT_GROUP = "devrun.device_facts"
ADAPTERS = {
    "cpu": "devrun.devices.cpu:CPUAdapter",
    "cuda": "devrun.devices.cuda.adapter:CUDAAdapter",
    "mps": "devrun.devices.generic:MPSAdapter",
    "xpu": "devrun.devices.generic:XPUAdapter",
    "npu": "devrun.devices.generic:NPUAdapter",
    "accelerator": "devrun.devices.generic:GenericAdapter",
    "hpu": "devrun.devices.hpu.adapter:HPUAdapter",
    "ipu": "devrun.devices.ipu.adapter:IPUAdapter",
}
"""Name -> adapter, both of this package."""


@dataclass(frozen=True)
class DeviceFacts:
    """What a device adds to configs, to resumes and to `auto`, as plain data.

    Kinds of keys are the words of `devrun.config.schema`.
    """

    auto: int | None = None
    """Its place in the order in which `auto` looks for a device; None: it is only taken
    by name."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set before torch is imported; what the user has set stays."""
    fast_environment: Mapping[str, str] = field(default_factory=dict)
    """The same, for `performance: fast` only."""
    other_names: tuple[str, ...] = ()
    """Other names that users try; the message suggests the right one."""
    has_emulator: bool = False
    """Whether devrun comes with a look-alike of its SDK, for `emulate`."""
    packages: tuple[str, ...] = ()
    """What a program for it imports; the first is the one to name."""
    resource: str | None = "nvidia.com/gpu"
    """What one of it is called by Kubernetes; None where it is no resource there."""
    runner_options: Mapping[str, str] = field(default_factory=dict)
    """Its options that MMCV keeps in the `runner` section -> their kinds."""
    top_level_options: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Top-level key of a config -> the option it sets, and its kind; the key also
    selects the device."""
    recomputes_by: str = ""
    """What it has in place of `gradient_checkpointing`, where it has none."""
    energy: str = ""
    """`module:function` that begins to count this process's part of the energy: the
    function returns one of the joules since then, or None without counters."""


OWN_FACTS: Mapping[str, DeviceFacts] = {
    "cpu": DeviceFacts(
        auto=100, resource=None, energy="devrun.devices.cpu:energy_counter"
    ),
    "cuda": DeviceFacts(
        auto=10,
        other_names=("gpu", "rocm", "hip"),
        fast_environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        energy="devrun.devices.cuda.energy:energy_counter",
    ),
    "mps": DeviceFacts(auto=40),
    "xpu": DeviceFacts(auto=50),
    "npu": DeviceFacts(auto=60),
    "accelerator": DeviceFacts(auto=70),
    "hpu": DeviceFacts(
        auto=20,
        resource="habana.ai/gaudi",
        has_emulator=True,
        packages=("habana_frameworks", "habana_dataloader"),
        # torch would load the SDK before the adapter has set what that reads
        environment={"PT_HPU_AUTOLOAD": "0"},
        other_names=("gaudi",),
    ),
    "ipu": DeviceFacts(
        auto=30,
        has_emulator=True,
        packages=("poptorch", "popart", "popdist"),
        runner_options={"options_cfg": "dict", "ipu_model_cfg": "dict"},
        top_level_options={"ipu_replicas": ("replicas", "count?")},
        recomputes_by="ipu: {train_ckpt_nodes: [...]} of a pipeline",
    ),
}
"""Those of this package."""


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


@lru_cache(maxsize=None)
def _loaded() -> dict[str, DeviceFacts]:
    found = dict(OWN_FACTS)
    for point in entry_points(ENTRY_POINT_GROUP):
        if point.name not in found:
            found[point.name] = point.load()
    return found
