"""The whole suite, and the class that `pytest --devrun-device NAME` collects."""

from devrun.testing.protocol import ProtocolTests
from devrun.testing.runs import RunTests
from devrun.testing.updates import StateTests, UpdateTests


class AdapterConformance(UpdateTests, ProtocolTests, StateTests, RunTests):
    """What the runner may rely on, tried on one device; subclass it in a test module.

    `device` is what a user writes to get it, a name or a mapping with options; `rtol`
    and `atol` say how far losses and weights may be from those of the CPU. What the
    adapter's `capabilities` leave out must be refused by name, and the rest must work.
    """


class TestConformance(AdapterConformance):
    """The plug-in fills in the device."""
