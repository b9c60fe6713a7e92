"""`Mesh`: which process does what, made once and asked by meaning.

Processes are numbered with `tensor` innermost, then `shard`, `replicate` and
`pipeline`: those that divide one matrix are neighbours, on the fastest links. Ranks
that differ in `tensor` or `pipeline` alone read the same samples; all others read
different ones.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from devrun.construct import where_key
from devrun.dist import get_dist_info
from devrun.errors import ConfigError
from devrun.parallel.options import DIMENSIONS, ParallelOptions


class Mesh:
    """The processes of one run.

    Args:
        device_type: that torch's collectives on weights and gradients run on.

    Raises:
        ConfigError: the options do not fit the number of processes.
    """

    def __init__(
        self, options: ParallelOptions | None = None, device_type: str = "cpu"
    ) -> None:
        rank, world = get_dist_info()
        asked = options or ParallelOptions()
        try:
            self.type, self._sizes = asked.fitted(world)
        except ConfigError as error:
            error.locate(where_key(asked.section or {}, error.key))
            raise
        tensor = self._sizes["tensor"]
        self.data_size = world // tensor // self.num_stages
        """Processes that read different samples."""
        self.stage, place = divmod(rank, self.data_size * tensor)
        """Of a pipeline."""
        self.data_rank, self.tensor_rank = divmod(place, tensor)
        self._device_type = device_type

    @property
    def tells_results(self) -> bool:
        """Whether results of this process count: one of each tensor group does, in the
        last stage."""
        return self.tensor_rank == 0 and self.stage == self.num_stages - 1

    @property
    def tensor_size(self) -> int:
        return self._sizes["tensor"]

    @property
    def num_stages(self) -> int:
        return self._sizes["pipeline"]

    @property
    def shard_size(self) -> int:
        return self._sizes["shard"]

    @cached_property
    def devices(self) -> Any:
        """torch's DeviceMesh of all processes, all dimensions."""
        from torch.distributed.device_mesh import init_device_mesh

        sizes = tuple(self._sizes[name] for name in DIMENSIONS)
        return init_device_mesh(self._device_type, sizes, mesh_dim_names=DIMENSIONS)

    @property
    def data(self) -> Any:
        """What weights are sharded over: one dimension, or (replicate, shard)."""
        if self._sizes["replicate"] > 1:
            return self.devices["replicate", "shard"]
        return self.devices["shard"]

    @property
    def tensor(self) -> Any:
        """What single matrices are divided over."""
        return self.devices["tensor"]

    @property
    def pipeline(self) -> Any:
        """The stages that this process is one of."""
        return self.devices["pipeline"]

    @property
    def replicas(self) -> Any:
        """Those with the same stage, or the same shard of a weight."""
        return self.devices["replicate"]

    def describe(self) -> str:
        """`fsdp over 4 processes (replicate 2, shard 2)`."""
        sizes = {name: size for name, size in self._sizes.items() if size > 1}
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        world = self.data_size * self.tensor_size * self.num_stages
        more = f" ({listed})" if listed else ""
        kind = self.type if self.num_stages == 1 else "pipeline"
        return f"{kind} over {world} processes{more}"
