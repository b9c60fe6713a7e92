from __future__ import annotations

from devrun.device_facts.facts import DeviceFacts

FACTS = DeviceFacts(
    auto=20,
    resource="habana.ai/gaudi",
    has_emulator=True,
    packages=("habana_frameworks", "habana_dataloader"),
    # torch would load the SDK before the adapter has set what that reads
    environment={"PT_HPU_AUTOLOAD": "0"},
    other_names=("gaudi",),
)
