"""What other launchers say of a process, as torch wants it: RANK, WORLD_SIZE, ..."""

from __future__ import annotations

import os
import re

from devrun.errors import ConfigError

LAUNCHERS = ("none", "pytorch", "slurm", "mpi")
"""Who may have started a process; MMCV's names."""
ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What `init_process_group` reads."""
_PORT = 29500
_SOURCES: dict[str, dict[str, tuple[str, ...]]] = {
    "slurm": {
        "RANK": ("SLURM_PROCID",),
        "WORLD_SIZE": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        "LOCAL_RANK": ("SLURM_LOCALID",),
    },
    "mpi": {
        "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK"),
        "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
        "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
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
    found = {
        name: next((os.environ[s] for s in sources if os.environ.get(s)), "")
        for name, sources in _SOURCES[launcher].items()
    }
    for name, value in found.items():
        if not value.isdecimal():
            given = f", and has {value!r}" if value else ""
            raise ConfigError(
                f"launcher {launcher!r} needs a number in "
                f"{' or '.join(_SOURCES[launcher][name])}{given}: {_HOW[launcher]}"
            )
    found["MASTER_ADDR"] = os.environ.get("MASTER_ADDR") or _address(launcher)
    job = os.environ.get("SLURM_JOB_ID", "")
    usual = 15000 + int(job) % 15000 if job.isdecimal() else _PORT
    found["MASTER_PORT"] = str(port or os.environ.get("MASTER_PORT") or usual)
    os.environ.update(found)


def _address(launcher: str) -> str:
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    nodes = next((os.environ[n] for n in names if os.environ.get(n)), None)
    if launcher == "mpi" or nodes is None:
        raise ConfigError(
            f"launcher {launcher!r} needs MASTER_ADDR (the host of rank 0) in the "
            f"environment: {_HOW[launcher]}"
        )
    return first_host(nodes)


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
