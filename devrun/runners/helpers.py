"""The small functions that MMCV scripts call beside a runner."""

from __future__ import annotations

import getpass
import socket
import time

from devrun.devices.seeding import Determinism, seed_streams
from devrun.dist import get_dist_info


def get_host_info() -> str:
    """`user@host`, or the host alone where the user has no name."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container may have no passwd entry
        return socket.gethostname()


def get_time_str() -> str:
    """Now, as in the names of log files: `20240131_235959`."""
    return time.strftime("%Y%m%d_%H%M%S", time.localtime())


def set_random_seed(
    seed: int, deterministic: bool = False, use_rank_shift: bool = False
) -> None:
    """Seed python, numpy and torch; a runner's `seed` does this and the data order.

    Args:
        seed: the same one on every rank.
        deterministic: use only algorithms that repeat bit for bit; torch raises
            RuntimeError where an operation has none.
        use_rank_shift: add the rank to `seed`.
    """
    rank = get_dist_info()[0] if use_rank_shift else 0
    seed_streams(seed + rank, 0)
    if deterministic:
        Determinism().apply()
