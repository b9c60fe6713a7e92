"""`Mesh`: which process does what, made once and asked by meaning.

Processes are numbered with `tensor` innermost, then `shard` and `replicate`: those that
divide one matrix are neighbours, on the fastest links. Ranks that differ in `tensor`
alone read the same samples; all others read different ones.
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
        self.data_size = world // tensor
        """Processes that read different samples."""
        self.data_rank, self.tensor_rank = divmod(rank, tensor)
        self._device_type = device_type

    @property
    def tells_results(self) -> bool:
        """Whether results of this process count: one of each tensor group does."""
        return self.tensor_rank == 0

    @property
    def tensor_size(self) -> int:
        return self._sizes["tensor"]

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

    def describe(self) -> str:
        """`fsdp over 4 processes (replicate 2, shard 2)`."""
        sizes = {name: size for name, size in self._sizes.items() if size > 1}
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        world = self.data_size * self.tensor_size
        more = f" ({listed})" if listed else ""
        return f"{self.type} over {world} processes{more}"
