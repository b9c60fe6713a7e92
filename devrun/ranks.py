"""What all processes of a run must have alike: what they were given, and how it went.

Processes that differ would wait for each other for ever, or train on as if they did
not; each of them ends instead with one line that names the ranks and what differs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from devrun.dist import gather_objects, get_dist_info
from devrun.errors import ConfigError, DevrunError

T = TypeVar("T")
_SHOWN = 3
_LONGEST = 60


def require_same(facts: Mapping[str, Any]) -> None:
    """Return if `facts` are the same on every rank; all of them must call it.

    A fact that a rank does not have is one that differs.

    Raises:
        ConfigError: on every rank, naming the first facts that differ, with the value
            and the ranks that have it.
    """
    if get_dist_info()[1] == 1:
        return
    mine = {name: repr(value) for name, value in facts.items()}
    # facts may be long and ranks many: they are exchanged only if they differ
    digest = hashlib.sha256(repr(sorted(mine.items())).encode()).hexdigest()
    if len(set(gather_objects(digest))) == 1:
        return
    ranks = gather_objects(mine)
    names = dict.fromkeys(name for rank in ranks for name in rank)
    differing = [
        f"{name} is {_listed([rank.get(name, 'not set') for rank in ranks])}"
        for name in names
        if len({rank.get(name) for rank in ranks}) > 1
    ]
    more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    raise ConfigError(
        f"the processes of this run differ: {'; '.join(differing[:_SHOWN])}{more}; "
        "start all with the same data, config and versions"
    )


def together(action: Callable[[], T]) -> T:
    """What `action` gives here, once it has succeeded on every rank.

    Raises:
        DevrunError: here what `action` raised, or else what it raised on the lowest of
            the ranks where it failed: none goes on alone.
    """
    if get_dist_info()[1] == 1:
        return action()
    try:
        result = action()
    except Exception as error:
        kind = type(error) if isinstance(error, DevrunError) else DevrunError
        gather_objects((kind, str(error) or repr(error)))
        raise
    nothing: Any = None
    for rank, failure in enumerate(gather_objects(nothing)):
        if failure is not None:
            kind, message = failure
            raise kind(f"rank {rank}: {message}")
    return result


def _listed(values: Sequence[str]) -> str:
    """`4 on rank 1, 8 on ranks 0, 2, 3`: the rarest value first."""
    having: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        having.setdefault(value, []).append(rank)
    rarest = sorted(having.items(), key=lambda item: len(item[1]))
    shown = [
        f"{value if len(value) <= _LONGEST else value[:_LONGEST] + '...'} on "
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}"
        f"{', ...' if len(ranks) > 8 else ''}"
        for value, ranks in rarest[:_SHOWN]
    ]
    return ", ".join(shown) + (", ..." if len(rarest) > _SHOWN else "")
