"""`TensorParallel`: single matrices divided over processes that read the same samples.

torch's `parallelize_module` by a plan, and over the remaining processes `fully_shard`.
Shoeybi et al. 2019 (arXiv:1909.08053), section 3: a column-wise
matrix and the row-wise one after it need one exchange in each direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from devrun.dist import gather_objects
from devrun.errors import ConfigError
from devrun.models.names import matching
from devrun.parallel.fsdp import FSDP
from devrun.parallel.options import ParallelOptions
from devrun.step import UpdatePolicy

_HEADS = ("n_head", "num_heads", "num_attention_heads")
_PARTS = 3  # of a `qkv` matrix


class TensorParallel(FSDP):
    """Matrices by the plan, then what is left as under FSDP, if there is more."""

    _begun = False

    def check(self, policy: UpdatePolicy, model: Any, optimizer: Any) -> None:
        super().check(policy, model, optimizer)
        # without `fully_shard`, autocast sets the precision as it does elsewhere
        self.casts = self.mesh.data_size > 1

    def _divide(self, step: Any) -> Mapping[str, Tensor]:
        model = step.module
        styles = styles_of(model, self.options)
        _check(model, styles, self.mesh.tensor_size)
        orders = self._reordered(model, styles)
        plan: dict[str, Any] = {
            name: RowwiseParallel() if style == "rowwise" else ColwiseParallel()
            for name, style in styles.items()
        }
        # all have the same weights already: none need be sent
        parallelize_module(model, self.mesh.tensor, plan, src_data_rank=None)
        if self.mesh.data_size > 1:
            self._shard(step)
        return orders

    def begin(self) -> None:
        """Streams that others saved, or that nobody seeded, become those of a group."""
        if self._begun:
            return
        self._begun = True
        device = None if self.rng is None else self.rng.rng_state()
        all_states = gather_objects((torch.get_rng_state(), device))
        first = self.mesh.data_rank * self.mesh.tensor_size
        host, device = all_states[first]
        torch.set_rng_state(host)
        if device is not None:
            self.rng.set_rng_state(device)

    def micro_batches(self, model: Any, parts: Sequence[Any]) -> Iterator[Any]:
        self.begin()
        return super().micro_batches(model, parts)

    def _name(self) -> str:
        return "parallel: mesh tensor"

    def _reordered(
        self, model: nn.Module, styles: Mapping[str, str]
    ) -> dict[str, Tensor]:
        """Give `qkv` matrices the rows of each process side by side; the new orders."""
        orders = {}
        for name in (name for name, style in styles.items() if style == "qkv"):
            module: Any = model.get_submodule(name)
            rows = torch.arange(module.out_features)
            parts = rows.view(_PARTS, self.mesh.tensor_size, -1)
            order = parts.transpose(0, 1).flatten()
            for key, param in module.named_parameters():
                with torch.no_grad():
                    param.copy_(param[order.to(param.device)])
                orders[f"{name}.{key}"] = order
        return orders


def styles_of(model: nn.Module, options: ParallelOptions) -> dict[str, str]:
    """The style of each module that the plan has, by name.

    Raises:
        ConfigError: there is no plan, or a pattern of it matches no Linear, or two
            match one.
    """
    given = options.plan
    if given is None:
        given = getattr(model, "tensor_plan", None)
    kind = type(model).__name__
    if not given:
        raise ConfigError(
            f"parallel: mesh tensor needs a plan, which {kind} does not bring: give "
            "plan: {PATTERN: colwise, PATTERN: rowwise}",
            key="plan",
        )
    named = model.named_modules()
    names = [name for name, module in named if isinstance(module, nn.Linear)]
    styles: dict[str, str] = {}
    for pattern, style in given.items():
        for name in filter(matching("plan", pattern, names)[pattern], names):
            if styles.setdefault(name, style) != style:
                raise ConfigError(
                    f"parallel: plan has {styles[name]} and {style} for {name}: give "
                    "patterns that do not overlap",
                    key="plan",
                )
    return styles


def _check(model: nn.Module, styles: Mapping[str, str], size: int) -> None:
    """Refuse what does not divide, which torch would find in the first step."""
    for name, style in styles.items():
        module: Any = model.get_submodule(name)
        row = style == "rowwise"
        what = "inputs" if row else "outputs"
        width = module.in_features if row else module.out_features
        if style == "qkv" and width % _PARTS == 0:
            width //= _PARTS
        parent = model.get_submodule(name.rpartition(".")[0])
        found = (getattr(parent, key) for key in _HEADS if hasattr(parent, key))
        heads = next(found, 0)
        for count, noun in ((heads, "heads"), (width, what)):
            if count % size:
                raise ConfigError(
                    f"parallel: mesh tensor {size} does not divide the {count} {noun} "
                    f"of {name}: take another number of processes",
                    key="mesh",
                )
