"""The `parallel` section: how several processes train one model, as plain data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from devrun.config.numbers import whole_number
from devrun.construct import where
from devrun.errors import ConfigError, ConfigTypeError, DevrunError, nearest

TYPES = ("ddp", "fsdp", "none")
DIMENSIONS = ("pipeline", "replicate", "shard", "tensor")
SEQUENCE_STYLES = ("split", "sequence", "gather")
STYLES = ("colwise", "rowwise", "qkv", *SEQUENCE_STYLES)
_ELSEWHERE = {
    "recompute": "gradient_checkpointing: [patterns], at the top of the config",
    "gradient_checkpointing": "the top of the config",
    "precision": "optimizer_config: {precision: bf16}",
    "cumulative_iters": "optimizer_config: {cumulative_iters: 2}",
    "backend": "dist_params: {backend: gloo}",
    **{name: f"mesh: {{{name}: 2}}" for name in DIMENSIONS},
}
_ABSENT = {
    "context": "torch's context_parallel runs on no CPU: long sequences are divided "
    "between matrices by mesh: {tensor: 2} with sequence: true, and "
    "gradient_checkpointing keeps fewer activations",
}
"""Dimensions that are elsewhere, and what there is here."""


def _flag(key: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigTypeError(
            f"parallel: {key} must be true or false, got {value!r}", key=key
        )


def _one_of(*choices: str) -> Callable[[str, Any], None]:
    def check(key: str, value: Any) -> None:
        if value not in choices:
            raise ConfigError(
                f"parallel: {key} must be one of {', '.join(choices)}, got {value!r}; "
                f"{nearest(str(value), choices)}",
                key=key,
            )

    return check


def _count(key: str, value: Any) -> None:
    if key != "reshard" or not isinstance(value, bool):
        whole_number(f"parallel.{key}", value, 2 if key == "reshard" else 1, key=key)


def _split(key: str, value: Any) -> None:
    if value != "auto" and not isinstance(value, (list, tuple)):
        raise ConfigTypeError(
            f"parallel: split takes auto, or a list of layers, got {value!r}", key=key
        )


def _wrap(key: str, value: Any) -> None:
    if isinstance(value, Mapping) and set(value) == {"min_params"}:
        whole_number("parallel.wrap.min_params", value["min_params"], key=key)
        return
    names = [value] if isinstance(value, str) else value
    listed = isinstance(names, (list, tuple)) and names
    if not listed or not all(isinstance(name, str) for name in names):
        given = dict(value) if isinstance(value, Mapping) else value
        raise ConfigTypeError(
            f"parallel: wrap takes class names or {{min_params: N}}, got {given!r}",
            key=key,
        )


def _each(key: str, value: Any) -> None:
    """Entries of `mesh` and `plan`."""
    if not isinstance(value, Mapping):
        raise ConfigTypeError(f"parallel: {key} takes a dict, got {value!r}", key=key)
    for name, entry in value.items():
        place = where(value, name)
        if key == "plan" and entry not in STYLES:
            raise ConfigError(
                f"parallel: plan takes {', '.join(STYLES)} for {name!r}, got {entry!r}",
                place=place,
            )
        if key == "mesh" and name not in DIMENSIONS:
            hint = _ABSENT.get(str(name)) or nearest(str(name), DIMENSIONS)
            raise ConfigError(
                f"parallel: mesh has no dimension {name!r}; {hint}", place=place
            )
        if key == "mesh" and (type(entry) is not int or entry < 1):
            raise ConfigTypeError(
                f"parallel: mesh.{name} must be an integer of at least 1, got "
                f"{entry!r}",
                place=place,
                key=name,
            )


def _option(default: Any, check: Callable[[str, Any], None], *types: str) -> Any:
    """A field; `types` are those that honour it, all of them where none is given."""
    metadata = {"check": check, "types": types or TYPES}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ParallelOptions:
    """What is asked for; None stands for what the device or torch does by itself."""

    section: ClassVar[Any] = None
    """What it was parsed from, for the places of errors; of an instance."""
    type: str | None = _option(None, _one_of(*TYPES))
    """`ddp`, `fsdp` or `none`; None is fsdp where the mesh shards or divides tensors,
    ddp for several processes, and none for one."""
    mesh: Mapping[str, int] = dataclasses.field(
        default_factory=dict, metadata={"check": _each, "types": TYPES}
    )
    """Processes along `pipeline`, `replicate`, `shard` and `tensor`."""
    static_graph: bool = _option(False, _flag, "ddp")
    gradient_as_bucket_view: bool | None = _option(None, _flag, "ddp")
    find_unused_parameters: bool = _option(False, _flag, "ddp")
    broadcast_buffers: bool | None = _option(None, _flag, "ddp", "fsdp")
    """Whether every update begins with the buffers (BatchNorm statistics) of rank 0."""
    bucket_cap_mb: int | None = _option(None, _count, "ddp")
    compression: str | None = _option(None, _one_of("bf16", "fp16"), "ddp")
    """Of gradients while they travel."""
    sync_bn: bool = _option(False, _flag, "ddp")
    """Whether batch norms take mean and variance of all processes' samples."""
    wrap: str | Sequence[str] | Mapping[str, int] | None = _option(None, _wrap, "fsdp")
    """What is gathered at a time: class names, or `{min_params: N}`; None for the
    model's own `fsdp_blocks`, else its numbered blocks."""
    reshard: bool | int | None = _option(None, _count, "fsdp")
    """Whether weights are given up between forward and backward; an int is the number
    of processes over which they stay divided. None gives up blocks and keeps what is in
    none of them, with which the backward begins."""
    offload: bool = _option(False, _flag, "fsdp")
    """Keep weights, gradients and optimizer state on the host."""
    plan: Mapping[str, str] | None = _option(None, _each, "fsdp", "none")
    """Module pattern -> `colwise`, `rowwise` or `qkv` (three colwise ones in one
    matrix) where the mesh has `tensor`; None for the model's own `tensor_plan`. With
    `sequence`, those of `SEQUENCE_STYLES` too, and of `sequence_plan`."""
    sequence: bool = _option(False, _flag, "fsdp", "none")
    """Whether those that divide matrices have parts of the sequence between them."""
    split: str | Sequence[Any] | None = _option(None, _split)
    """Where the mesh has `pipeline`: the first layer of each further stage; None or
    `auto` balances the model's blocks."""
    schedule: str = _option("1f1b", _one_of("1f1b", "gpipe"))
    """In which order the stages of a pipeline work."""

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
        if not isinstance(section, Mapping):
            raise ConfigTypeError.of(
                "parallel", f"takes a dict such as dict(type='fsdp'), got {section!r}"
            )
        known = {each.name: each.metadata for each in dataclasses.fields(cls)}
        for key, value in section.items():
            try:
                if key not in known:
                    home = _ELSEWHERE.get(str(key))
                    hint = f"it belongs to {home}" if home else nearest(str(key), known)
                    raise ConfigError(f"parallel has no key {key!r}; {hint}")
                if value is not None:
                    known[key]["check"](key, value)
            except DevrunError as error:
                error.locate(where(section, key))
                raise
        given = {key: value for key, value in section.items() if value is not None}
        options = cls(**{**given, "mesh": dict(given.get("mesh") or {})})
        object.__setattr__(options, "section", section)
        if options.type is not None:
            options._check_type(options.type, section)
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
        stages = sizes.setdefault("pipeline", 1)
        kind = self.type or self._usual(world)
        self._check_type(kind, {})
        self._check_sequence(tensor)
        # before the processes are counted: more of them would not help
        self._check_pipeline(kind, sizes)
        free = next((d for d in ("shard", "replicate") if d not in sizes), None)
        if kind == "none":
            free = None
        elif kind == "ddp":
            free = None if "replicate" in sizes else "replicate"
        fixed = math.prod(sizes.values())
        if free is not None and world % fixed == 0:
            sizes[free] = world // fixed
            fixed = world
        if kind == "none" and world > fixed and not self.mesh:
            raise ConfigError(
                f"parallel: type none trains alone, but there are {world} processes: "
                "use ddp or fsdp, or start one",
                key="type",
            )
        if fixed != world:
            less = ", or leave shard out to take what is left"
            listed = ", ".join(f"{name}: {size}" for name, size in self.mesh.items())
            raise ConfigError(
                f"parallel: mesh {{{listed}}} is for "
                f"{'a multiple of ' if free else ''}{fixed} processes, there "
                f"{'is' if world == 1 else 'are'} {world}: start as many"
                f"{less if 'shard' in self.mesh else ''}",
                key="mesh",
            )
        full = {name: sizes.get(name, 1) for name in DIMENSIONS}
        if world == 1:
            return "none", full
        if kind == "none" and tensor * stages != world:
            raise ConfigError(
                "parallel: type none averages no gradients, which mesh "
                f"{dict(self.mesh)} needs: use fsdp",
                key="type",
            )
        if kind == "ddp" and full["shard"] * tensor > 1:
            raise ConfigError(
                "parallel: type ddp keeps whole weights on each process and cannot "
                "shard or divide tensors: use fsdp with the same mesh",
                key="mesh",
            )
        return kind, full

    def _check_pipeline(self, kind: str, sizes: Mapping[str, int]) -> None:
        """Refuse what does not go together with stages, or needs them."""
        if sizes["pipeline"] == 1:
            for name in self.given():
                if name in ("split", "schedule"):
                    raise ConfigError(
                        f"parallel: {name} is for the stages of a pipeline: add mesh: "
                        "{pipeline: N}, or leave it out",
                        key=name,
                    )
            return
        others = [name for name in DIMENSIONS[2:] if sizes.get(name, 1) > 1]
        if others or kind == "fsdp":
            raise ConfigError(
                f"parallel: mesh pipeline cannot be combined with "
                f"{' and '.join(others) or 'type fsdp'}: leave one of them out, or use "
                "replicate",
                key="mesh",
            )

    def _usual(self, world: int) -> str:
        stages = self.mesh.get("pipeline", 1)
        if stages > 1:
            return "none" if stages == world else "ddp"
        divides = self.mesh.get("shard", 1) > 1 or self.mesh.get("tensor", 1) > 1
        if divides or any(_types(name)[0] == "fsdp" for name in self.given()):
            alone = self.mesh.get("tensor", 1) == world
            return "none" if alone else "fsdp"
        return "ddp" if world > 1 else "none"

    def _check_sequence(self, tensor: int) -> None:
        parts = {
            name: s for name, s in (self.plan or {}).items() if s in SEQUENCE_STYLES
        }
        if self.sequence and tensor == 1:
            raise ConfigError(
                "parallel: sequence: true divides activations over those that divide "
                "matrices: give mesh: {tensor: 2} or more, or leave it out",
                key="sequence",
            )
        if parts and not self.sequence:
            listed = ", ".join(f"{name}: {style}" for name, style in parts.items())
            raise ConfigError(
                f"parallel: plan has {{{listed}}}, of sequence: true: set it, or leave "
                "them out",
                key="plan",
            )

    def _check_type(self, kind: str, section: Mapping[str, Any]) -> None:
        """Refuse an option that `kind` would not honour."""
        for name in self.given():
            types = _types(name)
            if kind not in types and kind != "none":
                raise ConfigError(
                    f"parallel: {name} is for type {' or '.join(types)}; type {kind} "
                    "cannot honour it: leave it out",
                    key=name,
                    place=where(section, name),
                )


def _types(name: str) -> tuple[str, ...]:
    """Those that honour the option."""
    fields = {each.name: each for each in dataclasses.fields(ParallelOptions)}
    types: tuple[str, ...] = fields[name].metadata["types"]
    return types
