"""Where the stages of a pipeline begin, and which process has a weight.

Each process has the weights of its stage; those of others are meta tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as group
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from devrun.dist import gather_objects, get_dist_info, is_main
from devrun.errors import ConfigError
from devrun.models.blocks import blocks_of, depths_of
from devrun.models.split import layers_of, partition
from devrun.parallel.mesh import Mesh
from devrun.parallel.strategy import follow, optimizers_in
from devrun.tensors import map_tensors

REUSED = "reused_at_end"
"""The attribute in which a model names the weights that the end of its forward pass
uses again, such as an embedding that makes the logits too."""


def starts_of(model: nn.Module, split: Any, num_stages: int) -> list[str]:
    """The first layer of each stage but the first, in their order.

    Args:
        split: names of layers, or their places in `named_modules()`, one for each
            further stage; None or `auto` takes the model's numbered blocks, so that the
            stage with the most parameters has as few as can be.

    Raises:
        ConfigError: no such layer, another number of stages, or another order than that
            of the model.
    """
    if split is None or split == "auto":
        return _balanced(model, num_stages)
    try:
        starts = [name for name, _ in layers_of(model, split, "parallel.split")]
    except ConfigError as error:
        error.key = "split"
        raise
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    for before, after in pairwise(starts):
        if names.index(before) >= names.index(after):
            raise ConfigError(
                f"parallel.split goes backwards: {after!r} does not come after "
                f"{before!r}: name layers in the order of the model",
                key="split",
            )
    if len(starts) != num_stages - 1:
        raise ConfigError(
            f"parallel.split makes {len(starts) + 1} stages, and mesh pipeline is "
            f"{num_stages}: name the first layer of {num_stages - 1} further ones, or "
            f"set pipeline: {len(starts) + 1}",
            key="split",
        )
    return starts


def _balanced(model: nn.Module, num_stages: int) -> list[str]:
    names = [name for name, _ in blocks_of(model)]
    if len(names) < num_stages:
        count = f"only {len(names)}" if names else "fewer than two"
        raise ConfigError(
            f"parallel: mesh pipeline {num_stages}, and {type(model).__name__} has "
            f"{count} numbered blocks: name the first layer of each further stage in "
            "split, or take fewer stages",
            key="mesh",
        )
    sizes = [0] * (len(names) + 2)
    parameters = dict(model.named_parameters())
    for name, depth in (depths_of(model) or {}).items():
        sizes[depth] += parameters[name].numel()
    # what stands before the first block is with it, what follows the last with that
    sizes[1] += sizes[0]
    sizes[-2] += sizes[-1]

    def cost(_: int, first: int, end: int) -> int:
        return sum(sizes[first + 1 : end + 1])

    found = partition(len(names), num_stages, cost, cost, None) or ()
    return [names[first] for first in found[1:]]


def stages_by_name(model: nn.Module, starts: list[str]) -> dict[str, tuple[int, ...]]:
    """The stages that each parameter and buffer of `model` is in, by name.

    It is in the stage of its module: what is registered from the first layer of a
    stage on, up to that of the next. A weight that several names share, or that the
    model lists in `reused_at_end`, is in several; its first name has them all.

    Raises:
        ConfigError: the model lists what it does not have.
    """
    stage, of_module = 0, {}
    following = iter([*starts, None])
    start = next(following)
    for name, _ in model.named_modules(remove_duplicate=False):
        if name == start:
            stage, start = stage + 1, next(following)
        of_module[name] = stage
    stages: dict[str, tuple[int, ...]] = {}
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    shared: dict[int, set[int]] = {}
    for name, tensor in named:
        mine = of_module[name.rpartition(".")[0]]
        shared.setdefault(id(tensor), set()).add(mine)
    known = dict(named)
    for prefix, module in model.named_modules():
        for name in getattr(module, REUSED, ()):
            reused = known.get(f"{prefix}.{name}".lstrip("."))
            if reused is None:
                raise ConfigError.of(
                    REUSED,
                    f"of {type(module).__name__} lists {name!r}, which it has not",
                )
            shared[id(reused)].add(len(starts))
    for name, tensor in named:
        stages[name] = tuple(sorted(shared[id(tensor)]))
    return stages


def describe(model: nn.Module, starts: list[str]) -> str:
    """`stage 0: 12 parameters; stage 1 from blocks.2: 34 parameters`."""
    counts = [0] * (len(starts) + 1)
    parameters = dict(model.named_parameters())
    for name, stages in stages_by_name(model, starts).items():
        if name in parameters:
            for stage in stages:
                counts[stage] += parameters[name].numel()
    parts = [f"stage 0: {counts[0]:,} parameters"]
    for stage, start in enumerate(starts, 1):
        parts.append(f"stage {stage} from {start}: {counts[stage]:,}")
    return "; ".join(parts)


class StageWeights:
    """The stages that each parameter and buffer is in, by name.

    What is elsewhere stays in the model as a meta tensor, under its name. The first
    stage that has a weight speaks for it.
    """

    def __init__(
        self, stages: Mapping[str, tuple[int, ...]], mesh: Mesh, device: torch.device
    ) -> None:
        self.stages, self._mesh, self._device = stages, mesh, device
        self._elsewhere: set[int] = set()
        """Parameters that another stage counts."""
        self._first_name: dict[str, str] = {}
        self._tied: list[tuple[nn.Parameter, Any]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> StageWeights:
        return self

    def leave(self, model: nn.Module, optimizer: Any) -> None:
        """Give up what other stages have: weights, and the state of the optimizer."""
        stage = self._mesh.stage
        moved: dict[Tensor, Tensor] = {}
        first: dict[int, str] = {}
        for name, param in list(model.named_parameters(remove_duplicate=False)):
            self._first_name[name] = first.setdefault(id(param), name)
            if stage in self.stages[name]:
                if stage != self.stages[name][0]:
                    self._elsewhere.add(id(param))
                continue
            if param not in moved:
                empty = torch.empty_like(param, device="meta")
                moved[param] = nn.Parameter(empty, param.requires_grad)
            owner, _, key = name.rpartition(".")
            setattr(model.get_submodule(owner), key, moved[param])
        follow(optimizer, moved)
        forget_others(optimizer)
        # for copies of the weights, such as their average
        vars(model)["stage_weights"] = self
        self._tie(model)
        take_what_is_here(model)

    def _tie(self, model: nn.Module) -> None:
        groups: dict[tuple[int, ...], Any] = {}
        columns = [
            [rank + place for rank in self._firsts]
            for place in range(self._mesh.data_size)
        ]
        for name, param in model.named_parameters():
            stages = self.stages[name]
            if len(stages) < 2:
                continue
            if stages not in groups:
                for column in columns:
                    ranks = [column[stage] for stage in stages]
                    made = group.new_group(ranks)
                    if get_dist_info()[0] in ranks:
                        groups[stages] = made
                groups.setdefault(stages, None)
            if groups[stages] is not None:
                self._tied.append((param, groups[stages]))

    @property
    def _firsts(self) -> list[int]:
        """The first process of each stage."""
        size = self._mesh.data_size
        return [stage * size for stage in range(self._mesh.num_stages)]

    @property
    def replicas(self) -> Any:
        """The group of those with the same stage."""
        return self._mesh.replicas.get_group()

    def counts(self, param: Tensor) -> bool:
        """Whether this stage speaks for it."""
        return id(param) not in self._elsewhere

    def add_up(self) -> None:
        """Give each stage that has a weight the gradients of all that have it."""
        for param, ranks in self._tied:
            if not param.requires_grad:
                continue
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            group.all_reduce(param.grad, group=ranks)

    def spread(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Each tensor of `state` as a DTensor that only its own process has."""
        made: dict[str, Any] = {}  # of a tied weight one, wherever it is
        for name, value in state.items():
            first = self._first_name.get(name, name)
            made[name] = made[first] if first in made else self._spread(name, value)
        return made

    def whole(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Each as one process would have it, on the host of rank 0.

        Elsewhere it is a tensor without data. A collective.
        """
        return {name: self._whole(name, value) for name, value in state.items()}

    def optimizer_state(
        self, state: Mapping[str, Mapping[str, Any]], *, full: bool
    ) -> dict[str, Any]:
        """The state of all stages by the names of the parameters. A collective."""
        mine = {n: e for n, e in state.items() if self._is_mine(n)}
        facts = map_tensors(_fact, mine)
        others = gather_objects(facts)
        known = {n: e for rank in self._firsts for n, e in others[rank].items()}
        order = [name for name in self.stages if name in known]
        take = self._whole if full else self._spread
        found = {}
        for name in order:
            here = state[name] if self._is_mine(name) else known[name]
            found[name] = {
                key: take(name, value) if _is_tensor(value) else value
                for key, value in here.items()
            }
        return found

    def _is_mine(self, name: str) -> bool:
        return self._mesh.stage == self.stages[name][0]

    def _spread(self, name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or name not in self.stages:
            return value
        mesh = self._alone[self.stages[name][0]]
        mine = self._is_mine(name)
        local = value.detach() if mine else torch.empty(0, dtype=value.dtype)
        return DTensor.from_local(
            local,
            mesh,
            [Replicate()],
            run_check=False,
            shape=value.shape,
            stride=torch.empty(value.shape, device="meta").stride(),
        )

    def _whole(self, name: str, value: Any) -> Any:
        if not isinstance(value, Tensor) or name not in self.stages:
            return value
        home = self._firsts[self.stages[name][0]]
        if home and get_dist_info()[0] == home:
            group.send(value.detach().contiguous().to(self._device), 0)
        if not is_main():
            return torch.empty_like(value, device="meta")
        if not home:
            return value.detach().cpu()
        found = torch.empty(value.shape, dtype=value.dtype, device=self._device)
        group.recv(found, home)
        return found.cpu()

    @cached_property
    def _alone(self) -> list[DeviceMesh]:
        """The first process of each stage as a mesh."""
        kind = self._device.type
        return [DeviceMesh(kind, [rank]) for rank in self._firsts]


def _is_tensor(value: Any) -> bool:
    """Whether it is divided as its parameter is; a counter is not."""
    return isinstance(value, Tensor) and value.dim() > 0


def _fact(tensor: Tensor) -> Tensor:
    """What the other stages have to know of it."""
    return torch.empty_like(tensor, device="meta") if tensor.dim() else tensor.cpu()


def forget_others(optimizer: Any) -> None:
    """Drop the state of what other stages have."""
    for each in optimizers_in(optimizer):
        for param in [p for p in each.state if p.is_meta]:
            del each.state[param]


def take_what_is_here(module: nn.Module) -> None:
    """`load_state_dict` of `module` leaves out what is elsewhere from now on."""

    def leave_out(
        owner: nn.Module, state: dict[str, Any], prefix: str, *_: Any
    ) -> None:
        for name, here in (*owner._parameters.items(), *owner._buffers.items()):
            value = state.get(prefix + name)
            if here is None or not isinstance(value, Tensor):
                continue
            if here.is_meta or value.is_meta:  # what `whole` gave here has no data
                state[prefix + name] = here.detach()

    for part in module.modules():
        part.register_load_state_dict_pre_hook(leave_out)
