"""What the SDK reads from the environment, once, when it is loaded.

A default that changed between releases (lazy mode was on until 1.21) is never relied
on: every variable that decides what runs is set here, and a change that comes too late
is refused.
"""

from __future__ import annotations

import logging
import os

from devrun.devices.hpu.options import HPUOptions
from devrun.dist import launched
from devrun.errors import UnsupportedFeatureError

_set: dict[str, str] = {}
"""What was set for the SDK of this process."""

logger = logging.getLogger("devrun")


def variables(options: HPUOptions) -> dict[str, str]:
    """Name -> value of every variable that `options` decides."""
    lazy = options.mode == "lazy"
    wanted = {
        "PT_HPU_LAZY_MODE": "1" if lazy else "0",
        # the releases' own defaults, written down
        "PT_ENABLE_INT64_SUPPORT": "0" if lazy else "1",
        # without it negative indices give wrong numbers, not an error
        "PT_HPU_ENABLE_NEGATIVE_INDEXING": "1",
    }
    if lazy and options.graphs and launched():
        wanted["PT_HPU_ENABLE_LAZY_COLLECTIVES"] = "1"
    return wanted


def apply(options: HPUOptions, *, loaded: bool) -> dict[str, str]:
    """Set what `options` decide; what the SDK will see, or has seen.

    Raises:
        UnsupportedFeatureError: the SDK is `loaded` already, with something else.
    """
    wanted = variables(options)
    for name, value in wanted.items():
        before = os.environ.get(name)
        if loaded and _set.get(name, before) != value:
            raise UnsupportedFeatureError(
                f"device 'hpu' needs {name}={value}, but habana_frameworks was loaded "
                f"in this process with {_set.get(name, before) or 'its default'} and "
                f"reads it once: start a new process, or export {name}={value} before "
                "it (and PT_HPU_AUTOLOAD=0 where torch loads it by itself)"
            )
        if before not in (None, value):
            logger.warning("%s=%s of the environment becomes %s", name, before, value)
    if not loaded:
        os.environ.update(wanted)
        _set.update(wanted)
    return wanted
