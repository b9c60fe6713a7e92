"""Tests that every device adapter must pass, for a plug-in's own test suite.

    from devrun.testing import AdapterConformance

    class TestMyDevice(AdapterConformance):
        device = "mydevice"

pytest collects the tests of that class; nothing else needs to be written.
"""

import pytest

# before the modules are imported: a failing assert then shows what it compared
pytest.register_assert_rewrite(
    *(f"devrun.testing.{name}" for name in ("harness", "runs", "updates"))
)

from devrun.testing.runs import RunTests  # noqa: E402 - see above
from devrun.testing.updates import StateTests, UpdateTests  # noqa: E402

__all__ = ["AdapterConformance"]


class AdapterConformance(UpdateTests, StateTests, RunTests):
    """What the runner may rely on, tried on one device; subclass it in a test module.

    `device` is what a user writes to get it, a name or a mapping with options; `rtol`
    and `atol` say how far losses and weights may be from those of the CPU. What the
    adapter's `capabilities` leave out must be refused by name, and the rest must work.
    """
