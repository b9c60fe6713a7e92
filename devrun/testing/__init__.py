"""Tests that every device adapter must pass, for a plug-in's own test suite.

    from devrun.testing import AdapterConformance

    class TestMyDevice(AdapterConformance):
        device = "mydevice"

pytest collects the tests of that class; nothing else needs to be written. Without any
file, `pytest --devrun-device mydevice` runs them and says what holds.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from devrun.testing.suite import AdapterConformance as AdapterConformance

__all__ = ["AdapterConformance"]


def __getattr__(name: str) -> Any:
    """Imported when asked for: every pytest loads the plug-in that is beside it."""
    if name not in __all__:
        raise AttributeError(name)
    import pytest

    # before they are imported: a failing assert then shows what it compared
    modules = ("harness", "protocol", "runs", "updates")
    pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in modules))
    from devrun.testing.suite import AdapterConformance

    return AdapterConformance
