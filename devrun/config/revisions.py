"""`revise_keys`: how the keys of loaded weights are renamed, as MMCV writes it."""

from __future__ import annotations

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
_PAIRS, _LENGTH, _REPEATS = 100, 500, 6
_MANY = 16
"""From this many times on a repetition is counted as one without bound."""


def revisions(value: Any) -> list[tuple[re.Pattern[str], str]]:
    """The patterns of `revise_keys`, compiled, with what replaces them.

    A pattern may come from a config of others: one whose time could grow faster than
    a small power of a key's length (a repetition in a repetition, or of a choice) is
    refused.

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
        if _repeats(parsed, inside=False) > _REPEATS:
            raise ValueError(
                f"{describe(pattern)} could take for ever: repeat neither a repetition "
                f"nor a choice, and at most {_REPEATS} times in all"
            )
        found.append((compiled, replacement))
    return found


def _repeats(node: Any, *, inside: bool) -> int:
    """How many repetitions without bound a parsed pattern has; more than are accepted
    where one is in another, or a choice or a reference back is in one."""
    count = 0
    for operator, argument in node:
        name = str(operator)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            _, most, repeated = argument
            many = most >= _MANY
            count += (_REPEATS + 1 if inside else 1) if many else 0
            count += _repeats(repeated, inside=inside or many)
        elif name == "BRANCH":
            count += _REPEATS + 1 if inside else 0
            count += sum(_repeats(branch, inside=inside) for branch in argument[1])
        elif name in ("GROUPREF", "GROUPREF_EXISTS"):
            count += _REPEATS + 1 if inside or name == "GROUPREF_EXISTS" else 1
        elif name == "SUBPATTERN":
            count += _repeats(argument[-1], inside=inside)
        elif name in ("ASSERT", "ASSERT_NOT"):
            count += _repeats(argument[1], inside=inside)
        elif name == "ATOMIC_GROUP":
            count += _repeats(argument, inside=inside)
    return count
