from __future__ import annotations

from devrun.device_facts.facts import DeviceFacts

FACTS = DeviceFacts(
    auto=10,
    other_names=("gpu", "rocm", "hip"),
    fast_environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
)
