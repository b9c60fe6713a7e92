"""Which operators the compile backend leaves out of its graphs; none here."""

from __future__ import annotations

hpu_fallback_op_list: set[str] = set()
