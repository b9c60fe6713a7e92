"""`poptorch.Options` whose replicas and processes are those that poprun chose."""

# ruff: noqa: N802 - PopDist's names
from __future__ import annotations

from typing import Any, NoReturn

import poptorch
from poptorch.options import _DistributedOptions

import popdist


def _refuse(method: str) -> NoReturn:
    raise RuntimeError(f"Cannot call `{method}` with popdist.poptorch.Options")


class _Distributed(_DistributedOptions):
    """The processes are known; they cannot be chosen."""

    def _read(self, num_processes: str, process_id: str) -> None:
        self.set(
            num_distributed_processes=popdist.getNumInstances(),
            distributed_process_id=popdist.getInstanceIndex(),
        )

    def disable(self) -> NoReturn:
        """Refused."""
        _refuse("Distributed.disable")

    def configureProcessId(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse("Distributed.configureProcessId")

    def setEnvVarNames(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse("Distributed.setEnvVarNames")


class Options(poptorch.Options):
    """Options for one process of several; `ipus_per_replica` is checked by name only.

    Raises:
        RuntimeError: From every setter whose value poprun decides.
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "_distributed", _Distributed())
        self.set(replication_factor=popdist.getNumLocalReplicas())
        self._ipus_per_replica = ipus_per_replica or popdist.getNumIpusPerReplica()

    def replicationFactor(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse("replicationFactor")

    def useIpuId(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        _refuse("useIpuId")
