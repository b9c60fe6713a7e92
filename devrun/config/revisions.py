"""`revise_keys`: how the keys of loaded weights are renamed, as MMCV writes it."""

from __future__ import annotations

import math
import re
from typing import Any

from devrun.config.origin import describe

try:
    from re import _parser as parser  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_parse as parser

MODULE = ((r"^module\.", ""),)
"""MMCV's default: what DataParallel puts before every key."""
_ACCEPTED = "a list of [pattern, replacement] pairs of text"
_PAIRS, _LENGTH = 100, 500
_MANY = 16
"""Times that a repetition without bound is counted as."""
_CHOICES = 24.0
"""Bits: in 2**24 ways a pattern may go on, which is six repetitions without bound."""


def revisions(value: Any) -> list[tuple[re.Pattern[str], str]]:
    """The patterns of `revise_keys`, compiled, with what replaces them.

    A pattern may come from a config of others: one with too many ways through a key (a
    repetition in a repetition, or of a choice; a long row of what may be left out), all
    of which are tried before it does not match, is refused.

    Raises:
        ValueError: not such a list, or an invalid pattern or replacement.
    """
    if not isinstance(value, (list, tuple)) or len(value) > _PAIRS:
        raise ValueError(f"takes {_ACCEPTED} (at most {_PAIRS}), not {describe(value)}")
    found = []
    for pair in value:
        texts = isinstance(pair, (list, tuple)) and [isinstance(t, str) for t in pair]
        if texts != [True, True] or max(map(len, pair)) > _LENGTH:
            raise ValueError(
                f"takes {_ACCEPTED} of at most {_LENGTH} characters, not one with "
                f"{describe(pair)}"
            )
        pattern, replacement = pair
        try:
            parsed = parser.parse(pattern)
            compiled = re.compile(pattern)
            parser.parse_template(replacement, compiled)
        except (re.error, IndexError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{describe(pattern)} with {describe(replacement)} is no regular "
                f"expression with its replacement: {error}"
            ) from None
        if _choices(parsed) > _CHOICES:
            raise ValueError(
                f"{describe(pattern)} could take for ever: repeat neither a repetition "
                "nor a choice, and have at most 6 repetitions in all"
            )
        found.append((compiled, replacement))
    return found


def _choices(node: Any) -> float:
    """Bits of the number of ways through a parsed pattern: what is tried at most."""
    bits = 0.0
    for operator, argument in node:
        name = str(operator)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            least, most, repeated = argument
            bits += math.log2(min(most - least + 1, _MANY))
            if inner := _choices(repeated):
                bits += inner * most  # each time has the choice anew
        elif name == "BRANCH":
            bits += math.log2(sum(2.0 ** min(_choices(b), 64.0) for b in argument[1]))
        elif name in ("GROUPREF", "GROUPREF_EXISTS"):
            bits += _CHOICES + 1 if name == "GROUPREF_EXISTS" else math.log2(_MANY)
        elif name in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
            bits += _choices(argument[-1])
        elif name == "ATOMIC_GROUP":
            bits += _choices(argument)
    return bits
