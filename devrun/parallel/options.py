"""The `parallel` section: how several processes train one model, as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from devrun.config.schema import PARALLEL, check_value
from devrun.construct import where
from devrun.errors import ConfigError

TYPES = ("ddp", "fsdp", "none")
DIMENSIONS = ("replicate", "shard", "tensor")
STYLES = ("colwise", "rowwise", "qkv")

_OF_TYPES = {
    "static_graph": ("ddp",),
    "gradient_as_bucket_view": ("ddp",),
    "find_unused_parameters": ("ddp",),
    "broadcast_buffers": ("ddp", "fsdp"),
    "bucket_cap_mb": ("ddp",),
    "sync_bn": ("ddp",),
    "wrap": ("fsdp",),
    "reshard": ("fsdp",),
    "offload": ("fsdp",),
    "plan": ("fsdp", "none"),
}
"""Options that not every type honours -> those that do."""


@dataclass(frozen=True)
class ParallelOptions:
    """What is asked for; None stands for what the device or torch does by itself."""

    section: ClassVar[Any] = None
    """What it was parsed from, for the places of errors; of an instance."""
    type: str | None = None
    """`ddp`, `fsdp` or `none`; None is fsdp where the mesh shards or divides tensors,
    ddp for several processes, and none for one."""
    mesh: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Processes along `replicate`, `shard` and `tensor`."""
    static_graph: bool = False
    gradient_as_bucket_view: bool | None = None
    find_unused_parameters: bool = False
    broadcast_buffers: bool | None = None
    """Whether every update begins with the buffers (BatchNorm statistics) of rank 0."""
    bucket_cap_mb: int | None = None
    sync_bn: bool = False
    """Whether batch norms take mean and variance of all processes' samples."""
    wrap: str | Sequence[str] | None = None
    """Classes of what is gathered at a time; None for the model's own `fsdp_blocks`,
    else its numbered blocks."""
    reshard: bool | None = None
    """Whether weights are given up between forward and backward. None gives up blocks
    and keeps what is in none of them, with which the backward begins."""
    offload: bool = False
    """Keep weights, gradients and optimizer state on the host."""
    plan: Mapping[str, str] | None = None
    """Module pattern -> `colwise`, `rowwise` or `qkv` (three colwise ones in one
    matrix) where the mesh has `tensor`; None for the model's own `tensor_plan`."""

    @classmethod
    def parse(cls, section: Any) -> ParallelOptions:
        """`section`, a mapping (or None for the defaults) as options.

        Raises:
            ConfigError: an unknown key or value, or an option that the type cannot
                honour; with its place, where the mapping came from a config.
        """
        if isinstance(section, ParallelOptions):
            return section
        if section is None:
            return cls()
        check_value({}, "parallel", section, PARALLEL, ("parallel",))
        if section.get("type") not in (None, *TYPES):
            raise _not_one_of("type", section, TYPES)
        for pattern, style in (section.get("plan") or {}).items():
            if style not in STYLES:
                raise _not_one_of(pattern, section["plan"], STYLES, "plan.")
        given = {key: value for key, value in section.items() if value is not None}
        options = cls(**{**given, "mesh": dict(given.get("mesh") or {})})
        object.__setattr__(options, "section", section)
        if options.type is not None:
            options._check_type(options.type)
        return options

    def given(self) -> list[str]:
        """The options that are not what they are by default."""
        usual = vars(ParallelOptions())
        return [name for name, value in usual.items() if getattr(self, name) != value]

    def divides(self, world: int) -> bool:
        """Whether each of `world` processes will have only a part of some weights."""
        kind, sizes = self.fitted(world)
        return kind == "fsdp" or sizes["tensor"] > 1

    def fitted(self, world: int) -> tuple[str, dict[str, int]]:
        """The type, and the size of every dimension, for `world` processes.

        Raises:
            ConfigError: the mesh is for another number of processes, or the type
                cannot honour an option or a dimension.
        """
        sizes = dict(self.mesh)
        tensor = sizes.setdefault("tensor", 1)
        kind = self.type or self._usual(world)
        self._check_type(kind)
        rest = {"none": (), "ddp": ("replicate",), "fsdp": ("shard", "replicate")}
        free = next((name for name in rest[kind] if name not in sizes), None)
        fixed = math.prod(sizes.values())
        if free is not None and world % fixed == 0:
            sizes[free] = world // fixed
            fixed = world
        if fixed != world:
            raise ConfigError(
                f"parallel: {self._described(kind)} is for "
                f"{'a multiple of ' if free else ''}{fixed} "
                f"process{'es' if fixed > 1 else ''}, there "
                f"{'is' if world == 1 else 'are'} {world}: start as many, or give "
                "another",
                key="mesh" if self.mesh else "type",
            )
        full = {name: sizes.get(name, 1) for name in DIMENSIONS}
        if world == 1:
            return "none", full
        if kind == "none" and tensor != world:
            raise ConfigError(
                f"parallel: type none averages no gradients, which "
                f"{self._described(kind)} needs: use fsdp",
                key="type",
            )
        if kind == "ddp" and full["shard"] * tensor > 1:
            raise ConfigError(
                "parallel: type ddp keeps whole weights on each process and cannot "
                "shard or divide tensors: use fsdp with the same mesh",
                key="mesh",
            )
        return kind, full

    def _described(self, kind: str) -> str:
        listed = ", ".join(f"{name}: {size}" for name, size in self.mesh.items())
        return f"mesh {{{listed}}}" if listed else f"type {kind}"

    def _usual(self, world: int) -> str:
        divides = self.mesh.get("shard", 1) > 1 or self.mesh.get("tensor", 1) > 1
        if divides or any(
            _OF_TYPES.get(name, "-")[0] == "fsdp" for name in self.given()
        ):
            alone = self.mesh.get("tensor", 1) == world
            return "none" if alone else "fsdp"
        return "ddp" if world > 1 else "none"

    def _check_type(self, kind: str) -> None:
        """Refuse an option that `kind` would not honour."""
        for name in self.given():
            types = _OF_TYPES.get(name, TYPES)
            if kind not in types and kind != "none":
                raise ConfigError(
                    f"parallel: {name} is for type {' or '.join(types)}; type {kind} "
                    "cannot honour it: leave it out",
                    key=name,
                    place=where(self.section or {}, name),
                )


def _not_one_of(
    key: str, section: Any, known: Sequence[str], head: str = ""
) -> ConfigError:
    reason = f"{head}{key} must be one of {', '.join(known)}, got {section[key]!r}"
    return ConfigError(f"parallel: {reason}", key=key, place=where(section, key))
