"""`revise_keys`: how the keys of loaded weights are renamed, as MMCV writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from devrun.config.origin import describe

MODULE = ((r"^module\.", ""),)
"""MMCV's default: what DataParallel puts before every key."""
LONGEST = 256
"""Characters that a renamed key may have."""
_ACCEPTED = "takes [pattern, replacement] pairs of text"


def revisions(value: Any) -> list[tuple[re.Pattern[str], str]]:
    """The patterns of `revise_keys`, compiled, with what replaces them.

    Raises:
        ValueError: not such a list, or an invalid pattern or replacement.
    """
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{_ACCEPTED}, not {describe(value)}")
    return [_revision(pair) for pair in value]


def _revision(pair: Any) -> tuple[re.Pattern[str], str]:
    texts = isinstance(pair, (list, tuple)) and [isinstance(t, str) for t in pair]
    if texts != [True, True]:
        raise ValueError(f"{_ACCEPTED}, not one with {describe(pair)}")
    pattern, replacement = pair
    try:
        compiled = re.compile(pattern)
        re.sub(f"{pattern}|", replacement, "")  # reads the replacement too
    except (re.error, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{describe(pattern)} with {describe(replacement)} is no regular "
            f"expression with its replacement: {error}"
        ) from None
    return compiled, replacement


def revised(key: str, pairs: Sequence[tuple[re.Pattern[str], str]]) -> str:
    """`key` after each of the pairs in turn.

    Raises:
        ValueError: it becomes longer than any name of a weight.
    """
    for pattern, replacement in pairs:
        key = pattern.sub(replacement, key)
        if len(key) > LONGEST:
            raise ValueError(f"{describe(key)} has more than {LONGEST} characters")
    return key
