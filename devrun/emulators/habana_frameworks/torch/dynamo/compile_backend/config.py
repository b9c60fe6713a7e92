"""Switches of the compile backend; without effect here."""

from __future__ import annotations

import os

configuration_flags: dict[str, bool] = {
    "use_eager_fallback": os.environ.get("PT_HPU_USE_EAGER_FALLBACK", "1") == "1",
}
