"""The other processes of a run: how they are found, and what becomes of them."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from typing import Any

from devrun.errors import HangError

_SILENT = ("Timed out waiting", "collective operation timeout", "timed out after")
_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""What gloo and NCCL say."""

_PLACE = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
_STORES: dict[tuple[str | None, ...], tuple[Any, Iterator[int]]] = {}
"""By the place in a group: where its processes meet, and a number for each meeting."""


class LostPeerError(HangError):
    """Another process of the run has ended, or is silent: the cause is there."""


def addresses_of_this_start(**options: Any) -> dict[str, Any]:
    """Arguments of `init_process_group` by which the processes find each other.

    torchrun starts failed processes again with the same store, and a process may leave
    a group and form another: each group needs a name of its own in the store, or it
    reads the addresses of the one before. A store is kept as long as the process: were
    it opened again, one process could still reach the server of the old one.

    Args:
        options: for `torch.distributed.rendezvous`, such as `timeout`.
    """
    place = tuple(os.environ.get(name) for name in _PLACE)
    if place not in _STORES:
        from torch.distributed import rendezvous

        _STORES[place] = next(rendezvous("env://", **options)), itertools.count()
    (store, rank, world_size), formed = _STORES[place]
    from torch.distributed import PrefixStore

    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"start-{restart}-{next(formed)}", store)
    return {"store": store, "rank": rank, "world_size": world_size}


def lost_peer(error: BaseException) -> LostPeerError | None:
    """An explanation of a collective that failed because of another process."""
    text = str(error)
    if not isinstance(error, RuntimeError) or "WORLD_SIZE" not in os.environ:
        return None
    if any(word in text for word in _SILENT):
        return LostPeerError(
            "another process of the run did not answer in time; its log says where it "
            "stood, and dist_params: {timeout: SECONDS} gives it longer"
        )
    if any(word in text for word in _GONE):
        return LostPeerError(
            "another process of the run has ended; what it said, or the launcher of "
            "it, is the cause"
        )
    return None


def let_gloo_finish(seconds: float = 5.0) -> None:
    """Wait until gloo's threads, which a DDP model keeps alive, are idle.

    A thread may still hold the tensors of its last collective. Should it drop them
    while the interpreter shuts down, it asks for the GIL, gets none, and the finished
    process dies of SIGABRT ("terminate called without an active exception").
    """
    if not os.path.isdir("/proc/self/task"):
        return
    deadline = time.monotonic() + seconds
    idle = 0
    # Seen asleep twice, with the GIL free in between: it waits for work, not for us.
    while idle < 2 and time.monotonic() < deadline:
        idle = 0 if _gloo_thread_runs() else idle + 1
        time.sleep(0.001)


def _gloo_thread_runs() -> bool:
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/stat", encoding="ascii") as stat:
                name, _, rest = stat.read().partition("(")[2].rpartition(") ")
        except OSError:  # it has ended
            continue
        if name.startswith("pt_gloo") and not rest.startswith("S"):
            return True
    return False
