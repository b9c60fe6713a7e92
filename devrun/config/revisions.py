"""`revise_keys`: how the keys of loaded weights are renamed, as MMCV writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from devrun.config.origin import describe

MODULE = ((r"^module\.", ""),)
"""MMCV's default: what DataParallel puts before every key."""
_PAIRS, _LENGTH = 100, 500
_ACCEPTED = (
    f"at most {_PAIRS} [pattern, replacement] pairs of at most {_LENGTH} characters"
)
LONGEST = 256
"""Characters of a key that is renamed, and of what it becomes."""
_REPETITIONS, _CHOICES = 4, 12
_LITERAL = re.compile(r"\\.|\[\^?\]?[^\]]*\]", re.DOTALL)
"""In a pattern: an escaped character or a set of them, which repeats nothing."""


def revisions(value: Any) -> list[tuple[re.Pattern[str], str]]:
    """The patterns of `revise_keys`, compiled, with what replaces them.

    A pattern may come from a config of others, and `re` tries each way through a key
    before it finds that none matches. So a group is not repeated, and a pattern has few
    repetitions and choices: with keys of `LONGEST` that is some seconds at the most.

    Raises:
        ValueError: not such a list, or an invalid pattern or replacement.
    """
    if not isinstance(value, (list, tuple)) or len(value) > _PAIRS:
        raise ValueError(f"takes {_ACCEPTED}, not {describe(value)}")
    return [_revision(pair) for pair in value]


def _revision(pair: Any) -> tuple[re.Pattern[str], str]:
    texts = isinstance(pair, (list, tuple)) and [isinstance(t, str) for t in pair]
    if texts != [True, True] or max(map(len, pair)) > _LENGTH:
        raise ValueError(f"takes {_ACCEPTED}, not one with {describe(pair)}")
    pattern, replacement = pair
    try:
        compiled = re.compile(pattern)
        re.sub(f"{pattern}|", replacement, "")  # reads the replacement too
    except (re.error, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(
            f"{describe(pattern)} with {describe(replacement)} is no regular "
            f"expression with its replacement: {error}"
        ) from None
    plain = _LITERAL.sub("x", pattern)
    repetitions = len(re.findall(r"[*+{]", plain))
    choices = len(re.findall(r"[|]|(?<![(*+?}])[?]", plain))
    too_many = repetitions > _REPETITIONS or choices > _CHOICES
    if too_many or re.search(r"\)[*+{]", plain):
        raise ValueError(
            f"{describe(pattern)} could take for ever: repeat no group, and have "
            f"at most {_REPETITIONS} repetitions and {_CHOICES} choices"
        )
    return compiled, replacement


def revised(key: str, pairs: Sequence[tuple[re.Pattern[str], str]]) -> str:
    """`key` after each of the pairs in turn.

    Raises:
        ValueError: the key, or what it becomes, is longer than any name of a weight.
    """
    for pattern, replacement in pairs:
        if len(key) > LONGEST:
            break
        key = pattern.sub(replacement, key)
    if pairs and len(key) > LONGEST:
        raise ValueError(f"{describe(key)} has more than {LONGEST} characters")
    return key
