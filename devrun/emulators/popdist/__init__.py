"""A look-alike of PopDist: what poprun told this process about the others.

There is no emulated poprun. Without its environment variables this process is the only
one; with them the answers are theirs, so that code that divides work can be rehearsed.
Gradients do not travel between emulated processes.
"""

# ruff: noqa: N802 - PopDist's names
from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

__all__ = [
    "execute_on_instances",
    "finalize",
    "getDeviceId",
    "getInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "isPopdistEnvSet",
]


def _variable(name: str, default: int) -> int:
    text = os.environ.get(f"POPDIST_{name}")
    if text is None:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise RuntimeError(f"POPDIST_{name} is no whole number: {text!r}") from error


def isPopdistEnvSet() -> bool:
    """Whether poprun started this process."""
    return "POPDIST_NUM_TOTAL_REPLICAS" in os.environ


def init() -> None:
    """Joins nothing: there is no transport between emulated processes."""


def finalize() -> None:
    """Undoes `init`."""


def getNumTotalReplicas() -> int:
    """Replicas of all processes."""
    return _variable("NUM_TOTAL_REPLICAS", 1)


def getNumLocalReplicas() -> int:
    """Replicas of this process."""
    return _variable("NUM_LOCAL_REPLICAS", 1)


def getNumIpusPerReplica() -> int:
    """IPUs of one replica."""
    return _variable("NUM_IPUS_PER_REPLICA", 1)


def getReplicaIndexOffset() -> int:
    """The number of this process's first replica."""
    return _variable("REPLICA_INDEX_OFFSET", 0)


def getNumInstances() -> int:
    """How many processes there are."""
    return getNumTotalReplicas() // getNumLocalReplicas()


def getInstanceIndex() -> int:
    """Which process this is, from 0."""
    return getReplicaIndexOffset() // getNumLocalReplicas()


def getDeviceId(num_ipus: int | None = None) -> int:
    """The device of this process: any, in an emulated machine."""
    return 0


def execute_on_instances(
    instances: Collection[int], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """`function(*args, **kwargs)` in these processes; None in the others."""
    if getInstanceIndex() in instances:
        return function(*args, **kwargs)
    return None
