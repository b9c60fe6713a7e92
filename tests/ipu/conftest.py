"""The emulated PopTorch with its settings and counters as at the start."""

import pytest

from devrun.devices.ipu.sdk import load


@pytest.fixture(autouse=True)
def emulation():
    """All IPUs, no memory limit, counters at zero."""
    controls = load(emulate=True).emulation
    controls.counts.clear()
    yield controls
    controls.set_ipus(None)
    controls.set_memory_limit(None)
    controls.counts.clear()
