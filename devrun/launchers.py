"""What other launchers say of a process, as torch wants it: RANK, WORLD_SIZE, ..."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from devrun.errors import ConfigError

LAUNCHERS = ("none", "pytorch", "slurm", "mpi")
"""Who may have started a process; MMCV's names."""
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What `init_process_group` reads."""
_PORT = 29500
_SOURCES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "slurm": {
        "RANK": ("SLURM_PROCID",),
        "WORLD_SIZE": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        "LOCAL_RANK": ("SLURM_LOCALID",),
    },
    "mpi": {
        "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"),
        "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE"),
        "LOCAL_RANK": (
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "MPI_LOCALRANKID",
            "PMIX_LOCAL_RANK",
            "PMI_LOCAL_RANK",
        ),
    },
}
"""Variable of torch -> those that a launcher may set, the first first."""
_HOW = {
    "slurm": "start with srun, a task a process",
    "mpi": "start with mpirun -n N",
}


def take_over(launcher: str, port: int | None = None) -> None:
    """Set torch's variables from those of `slurm` or `mpi`, but for those that are set.

    With SLURM the first machine of the list is where the processes meet, and the port
    follows from the number of the job, so that two jobs on a machine do not clash.

    Args:
        port: where they meet; by default MASTER_PORT.

    Raises:
        ConfigError: names the variables that are missing.
    """
    found: dict[str, str] = {}
    missing = []
    for name, sources in _SOURCES[launcher].items():
        value = next((os.environ[s] for s in sources if os.environ.get(s)), None)
        if value is None:
            missing.append(" or ".join(sources))
        elif not value.isdecimal():
            raise ConfigError(
                f"launcher {launcher!r}: {sources[0]} is {value!r} in the environment, "
                "which is no number"
            )
        else:
            found[name] = value
    if not missing:
        address = os.environ.get("MASTER_ADDR") or _address(launcher, found)
        if address is None:
            missing.append("MASTER_ADDR (the host of rank 0)")
        else:
            found["MASTER_ADDR"] = address
    if missing:
        raise ConfigError(
            f"launcher {launcher!r} needs {', '.join(missing)} in the environment: "
            f"{_HOW[launcher]}"
        )
    found["MASTER_PORT"] = str(port or os.environ.get("MASTER_PORT") or _port())
    os.environ.update(found)


def _address(launcher: str, found: Mapping[str, str]) -> str | None:
    if launcher == "slurm":
        names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
        nodes = next((os.environ[n] for n in names if os.environ.get(n)), None)
        return None if nodes is None else first_host(nodes)
    sizes = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE")
    here = next((os.environ[n] for n in sizes if os.environ.get(n)), None)
    return "127.0.0.1" if here == found["WORLD_SIZE"] else None


def _port() -> int:
    job = os.environ.get("SLURM_JOB_ID", "")
    return 15000 + int(job) % 15000 if job.isdecimal() else _PORT


def first_host(nodes: str) -> str:
    """The first machine of a list as SLURM writes it: `node[08-11,20],gpu3`.

    Raises:
        ConfigError: it is no such list.
    """
    first = re.fullmatch(r"([\w.-]+)(?:\[(\d+)[\d,-]*\]([\w.-]*))?(?:,.*)?", nodes)
    if first is None:
        raise ConfigError(
            f"SLURM's list of machines, {nodes[:80]!r}, cannot be read; set MASTER_ADDR"
        )
    return "".join(part or "" for part in first.groups())
