"""What the SDK keeps to name graph nodes by module; nothing is named here."""

from __future__ import annotations

from collections import deque

_name_stack: deque[str] = deque()
