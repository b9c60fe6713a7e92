from __future__ import annotations

from devrun.devices.facts import DeviceFacts

FACTS = DeviceFacts(
    has_emulator=True,
    packages=("poptorch", "popart", "popdist"),
    runner_options=("options_cfg", "ipu_model_cfg", "modules_to_record"),
    top_level_options={"ipu_replicas": "replicas"},
)
