"""The backend `hccl` of torch.distributed, over gloo."""

from __future__ import annotations

import os

from habana_frameworks.torch.distributed.hccl import process_group
from habana_frameworks.torch.distributed.hccl.process_group import ProcessGroupHCCL

__all__ = ["ProcessGroupHCCL", "initialize_distributed_hpu"]


def _number(name: str, given: int | None, default: int) -> int:
    """What was given, else the launcher's variable, else MPI's, else the default."""
    if given is not None:
        return given
    for variable in (name, f"OMPI_COMM_WORLD_{name}"):
        if (text := os.environ.get(variable)) is not None:
            return int(text)
    return default


def _module_of(local_rank: int) -> str:
    visible = os.environ.get("HABANA_VISIBLE_MODULES")
    if not visible:
        return str(local_rank)
    modules = visible.split(",")
    if local_rank >= len(modules):
        raise AssertionError(
            f"local rank {local_rank} needs a device, HABANA_VISIBLE_MODULES has "
            f"{len(modules)}"
        )
    return modules[local_rank]


def initialize_distributed_hpu(
    world_size: int | None = None,
    rank: int | None = None,
    local_rank: int | None = None,
) -> tuple[int, int, int]:
    """(world size, rank, local rank) from arguments, the launcher or MPI.

    (1, -1, -1) where nobody says. Fills in what torch.distributed and the SDK read.
    """
    world_size = _number("WORLD_SIZE", world_size, 1)
    rank = _number("RANK", rank, -1)
    local_rank = _number("LOCAL_RANK", local_rank, -1)
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        os.environ.setdefault("MASTER_ADDR", "localhost")
        os.environ.setdefault("MASTER_PORT", "12345")
        os.environ.setdefault("WORLD_SIZE", str(world_size))
        os.environ.setdefault("RANK", str(rank))
        os.environ.setdefault("LOCAL_RANK", str(local_rank))
    if rank >= 0:
        os.environ["ID"] = str(rank)
    if local_rank >= 0:
        os.environ["HLS_MODULE_ID"] = _module_of(local_rank)
    return world_size, rank, local_rank


process_group.install()
initialize_distributed_hpu()
