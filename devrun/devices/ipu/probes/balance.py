"""Balanced pipelines: what each block of a model costs, and its division over IPUs.

One micro-batch goes through a copy of the model whose tensors have shapes but no values
(`torch._subclasses.FakeTensorMode`), so nothing is computed and nothing of the model
changes. `torch.utils.flop_counter` counts the forward operations of matrix products and
convolutions, attention as its products, as IPUs compute it. A block is all that runs
from its call to the call of the next one. Backward passes and recomputation multiply
the cost of all stages alike.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from devrun.errors import ConfigError, DevrunError
from devrun.models.step_module import StepModule
from devrun.probes.memory import Numbers
from devrun.text import joined


@dataclass(frozen=True)
class Block:
    """What runs from the call of the layer `name` to the call of the next block's."""

    name: str
    flops: int


@dataclass(frozen=True)
class Split:
    """A division of a model: the blocks of each stage."""

    stages: tuple[tuple[Block, ...], ...]

    @property
    def edges(self) -> list[dict[str, Any]]:
        """Those of a config."""
        return [
            {"layer_to_call": stage[0].name, "ipu_id": ipu}
            for ipu, stage in enumerate(self.stages)
        ]

    @property
    def most_flops(self) -> int:
        """Forward floating-point operations of the stage that has most."""
        return max(sum(block.flops for block in stage) for stage in self.stages)


def balanced(blocks: Sequence[Block], num_ipus: int) -> Split:
    """The contiguous division with the least work in its largest stage.

    Raises:
        ConfigError: fewer blocks than IPUs.
    """
    if len(blocks) < num_ipus:
        names = ", ".join(block.name for block in blocks)
        raise ConfigError(
            f"num_ipus is {num_ipus}, but the model has only {len(blocks)} blocks to "
            f"divide ({names}); set num_ipus to at most that"
        )
    # of the first blocks, by their number: the least possible, and the stages' begins
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for stage in range(num_ipus):
        longer: dict[int, tuple[int, tuple[int, ...]]] = {}
        for end in range(stage + 1, len(blocks) - (num_ipus - stage - 1) + 1):
            longer[end] = min(
                (max(most, sum(b.flops for b in blocks[start:end])), (*starts, start))
                for start, (most, starts) in best.items()
                if start < end
            )
        best = longer
    starts = best[len(blocks)][1]
    ends = (*starts[1:], len(blocks))
    return Split(tuple(tuple(blocks[i:j]) for i, j in zip(starts, ends)))


def traced(model: nn.Module, batch: Any) -> Trace:
    """One forward pass of a model, which stays as it is.

    Args:
        model: the user's module, or a `StepModule` of it, which runs the loss too. The
            names of the blocks are those of the user's module.
        batch: one micro-batch, on the host.

    Raises:
        ConfigError: the model cannot be run without values.
    """
    step = model if isinstance(model, StepModule) else StepModule(model)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with fake, FakeCopyMode(fake):
            twin = copy.deepcopy(step).train()
        trace = Trace(twin.module)
        numbers, sdpa = Numbers(), sdpa_kernel(SDPBackend.MATH)
        with fake, trace.flops, numbers, sdpa, torch.enable_grad():
            twin(batch, "train" if step is model else "predict")
    except DevrunError:
        raise
    except Exception as error:
        cause = joined(error)[:200]
        raise ConfigError(
            f"{step.model_name} cannot be followed without values "
            f"({type(error).__name__}: {cause})"
        ) from error
    return trace


class Trace:
    """Counts operations while a model runs, by module called."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.flops = FlopCounterMode(display=False)
        self.calls: dict[str, int] = {}
        """Module -> what had been counted until its first call."""
        self._again: set[str] = set()
        for name, module in root.named_modules():
            module.register_forward_pre_hook(partial(self._called, name))

    def _called(self, name: str, *_: Any) -> None:
        if name in self.calls:
            self._again.add(name)
        else:
            self.calls[name] = self.flops.get_total_flops()

    def blocks(self, names: Sequence[str] = ()) -> list[Block]:
        """The blocks of the model in the order of their calls.

        They are the layers of its chains (Sequential, ModuleList) and what is called
        between them; a layer that is called twice is no block of its own.

        Args:
            names: the first layers of the blocks, where they are chosen already.
        """
        names = self._sorted(names or self._inside(""))
        begins = [0, *(self.calls[name] for name in names[1:])]
        ends = [*begins[1:], self.flops.get_total_flops()]
        rows = zip(names, begins, ends)
        return [Block(name, end - begin) for name, begin, end in rows]

    def tied(self, names: Sequence[str]) -> list[list[tuple[str, str]]]:
        """Of each weight with several names, those, with the blocks that they are in.

        A block is named by its first layer; what runs before `names` has no name. What
        a module has that is never called is where the one around it is called.
        """
        place = {name: at for at, name in enumerate(self.calls)}
        blocks = self._sorted(["", *names])
        found: dict[int, list[tuple[int, str, str]]] = {}
        for path, weight in self.root.named_parameters(remove_duplicate=False):
            owner = path.rpartition(".")[0]
            while owner not in place:
                owner = owner.rpartition(".")[0]
            at = place[owner]
            block = [name for name in blocks if place[name] <= at][-1]
            found.setdefault(id(weight), []).append((at, path, block))
        several = (sorted(uses) for uses in found.values() if len(uses) > 1)
        return [[use[1:] for use in uses] for uses in several]

    def _sorted(self, names: Sequence[str]) -> list[str]:
        """Those that are called, in the order of their calls."""
        return [name for name in self.calls if name in names]

    def _inside(self, name: str) -> list[str]:
        """The blocks in the module `name`, which is itself divided."""
        found: list[str] = []
        for child_name, child in self.root.get_submodule(name).named_children():
            full = f"{name}.{child_name}" if name else child_name
            if full in self._again:
                continue
            if full not in self.calls or _is_divided(child):
                found += self._inside(full)  # a list of layers is not called itself
            else:
                found.append(full)
        return found


def _is_divided(module: nn.Module) -> bool:
    """Whether a module is a chain, or has a chain of equal layers in it."""
    return isinstance(module, nn.Sequential) or any(
        isinstance(part, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
        and len(part) > 1
        and len({type(layer) for layer in part.children()}) == 1
        for part in module.modules()
    )
