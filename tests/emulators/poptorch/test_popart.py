"""The companion module of enumerations."""

import popart
import poptorch


def test_enumerations_go_into_session_options():
    opts = poptorch.Options()
    schedule = popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized
    opts._Popart.set("accumulateOuterFragmentSettings.schedule", int(schedule))
    assert opts._popart.options["accumulateOuterFragmentSettings.schedule"] == 3
