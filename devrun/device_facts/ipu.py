from __future__ import annotations

from devrun.device_facts.facts import DeviceFacts

FACTS = DeviceFacts(
    auto=30,
    has_emulator=True,
    packages=("poptorch", "popart", "popdist"),
    runner_options={"options_cfg": "dict", "ipu_model_cfg": "dict"},
    top_level_options={"ipu_replicas": ("replicas", "count?")},
    recomputes_by="an IPU has train_ckpt_nodes in a pipeline",
)
