"""Weights that are spread over processes: made whole, divided, and their gradients.

A spread tensor is a DTensor: what this process has of it, and where the rest is.
torch takes a while to import them, so only what spreads something imports this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as group
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.linalg import vector_norm

from devrun.dist import is_main
from devrun.step import UpdatePolicy
from devrun.tensors import local_of


def whole(value: Any, order: Tensor | None = None) -> Any:
    """`value` as one process would have it, on the host of rank 0.

    Elsewhere it is a tensor without data: nobody needs as many copies as there are
    processes. A collective; what is not spread comes back as it is.
    """
    if not isinstance(value, DTensor):
        return value
    full = _gathered(value)
    if not is_main():
        return torch.empty_like(full, device="meta")
    return full.cpu() if order is None else full.cpu()[torch.argsort(order)]


def _gathered(value: DTensor) -> Tensor:
    """All of it, dimension by dimension of the mesh, in the order `divided` undoes."""
    mesh = value.device_mesh
    axes: list[Any] = list(value.placements)
    sharded = {i: p.dim for i, p in enumerate(axes) if _is_shard(p)}
    if len(sharded) < 2:
        return value.full_tensor()
    meta = torch.empty(value.shape, device="meta")
    shapes = {}
    for dim in reversed(sharded):
        shapes[dim] = meta
        place = (mesh.size(dim), mesh.get_local_rank(dim))
        meta = _chunk(meta, sharded[dim], *place)
    local = value.to_local()
    for dim, axis in sharded.items():
        line = mesh[(mesh.mesh_dim_names or ())[dim]]
        whole_of_line = DTensor.from_local(
            local,
            line,
            [Shard(axis)],
            run_check=False,
            shape=shapes[dim].shape,
            stride=shapes[dim].contiguous().stride(),
        )
        local = whole_of_line.full_tensor()
    return local


def _is_shard(placement: Any) -> bool:
    return hasattr(placement, "dim")


def divided(full: Tensor, like: DTensor, order: Tensor | None = None) -> DTensor:
    """This process's part of `full`, which all have, spread as `like`."""
    mesh = like.device_mesh
    local = full.detach().to(like.device)
    if order is not None:
        local = local[order.to(local.device)]
    # the last dimension of a mesh divides first: that is what fully_shard finds
    for dim in reversed(range(mesh.ndim)):
        placement: Any = like.placements[dim]
        if _is_shard(placement):
            place = (mesh.size(dim), mesh.get_local_rank(dim))
            local = _chunk(local, placement.dim, *place)
    return DTensor.from_local(
        local.clone().contiguous(),
        mesh,
        like.placements,
        run_check=False,
        shape=full.shape,
        stride=torch.empty(full.shape, device="meta").stride(),
    )


def _chunk(tensor: Tensor, dim: int, count: int, index: int) -> Tensor:
    size = -(-tensor.shape[dim] // count)  # as torch.chunk, with empty ones at the end
    start = min(index * size, tensor.shape[dim])
    return tensor.narrow(dim, start, min(size, tensor.shape[dim] - start))


def divide_state(optimizer: Any, orders: Mapping[Tensor, Tensor]) -> None:
    """Divide whole state of spread parameters, such as a resumed run has it."""
    for param, entries in optimizer.state.items():
        if not isinstance(param, DTensor):
            continue
        for key, value in entries.items():
            spread = isinstance(value, DTensor) or not isinstance(value, Tensor)
            if not spread and value.dim() and value.shape == param.shape:
                entries[key] = divided(value, param, orders.get(param))


def divide_what_is_loaded(module: nn.Module, orders: Mapping[Tensor, Tensor]) -> None:
    """`load_state_dict` of `module` takes whole tensors from now on, from any file."""

    def divide(owner: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, param in owner.named_parameters(recurse=False):
            value = state.get(prefix + name)
            if not isinstance(param, DTensor) or not isinstance(value, Tensor):
                continue
            if value.is_meta:  # what `whole` gave here has no data
                state[prefix + name] = param.detach()
            elif not isinstance(value, DTensor) and value.shape == param.shape:
                state[prefix + name] = divided(value, param, orders.get(param))

    for part in module.modules():
        if any(isinstance(p, DTensor) for p in part.parameters(recurse=False)):
            part.register_load_state_dict_pre_hook(divide)


def total_norm(grads: Iterable[Tensor], norm_type: float = 2.0) -> Any:
    """The norm of all gradients together; the same number on every process.

    Each is counted once: sharded ones are summed over those that have the shards,
    replicated ones are not. A collective. An infinite norm takes nan for infinity.
    """
    groups: dict[Any, list[Tensor]] = {}
    for grad in grads:
        groups.setdefault(_spread_over(grad), []).append(local_of(grad))
    parts = [_of_group(key, found, norm_type) for key, found in groups.items()]
    if not parts:
        return torch.zeros(())
    return vector_norm(torch.stack(parts), norm_type)


def _of_group(key: Any, grads: Sequence[Tensor], norm_type: float) -> Any:
    some = [grad.float() for grad in grads if grad.numel()]
    norm = torch.zeros((), device=grads[0].device)
    if some:
        norm = vector_norm(torch.stack(torch._foreach_norm(some, norm_type)), norm_type)
    if key is None:
        return norm
    mesh, dims = key
    largest = math.isinf(norm_type)
    norm = norm.nan_to_num(math.inf, math.inf) if largest else norm**norm_type
    for dim in dims:
        kind = group.ReduceOp.MAX if largest else group.ReduceOp.SUM
        group.all_reduce(norm, op=kind, group=mesh.get_group(dim))
    return norm if largest else norm ** (1 / norm_type)


def _spread_over(grad: Tensor) -> Any:
    """(mesh, its dimensions over which `grad` is spread), or None."""
    if not isinstance(grad, DTensor):
        return None
    dims = [i for i, p in enumerate(grad.placements) if not p.is_replicate()]
    return (grad.device_mesh, tuple(dims)) if dims else None


def clip_function(policy: UpdatePolicy) -> Callable[[Any], Tensor | None]:
    """As torch's clipping, over gradients spread in any way together."""
    options = dict(policy.grad_clip or {})
    limit = options.get("max_norm")
    norm_type = float(options.get("norm_type", 2.0))

    def clip(optimizer: Any) -> Any:
        grads = gradients_of(optimizer)
        found = [local_of(grad) for grad in grads]
        if limit is None:
            value = options["clip_value"]
            for grad in found:
                grad.clamp_(-value, value)
            return None
        norm = total_norm(grads, norm_type)
        if options.get("error_if_nonfinite") and not torch.isfinite(norm):
            raise RuntimeError(
                f"the total norm of order {norm_type} of the gradients is {norm}, so "
                "they cannot be clipped; leave error_if_nonfinite out to go on"
            )
        factor = torch.clamp(float(limit) / (norm + 1e-6), max=1.0)
        for grad in found:
            grad.mul_(factor.to(grad.device))
        return norm

    return clip


def gradients_of(optimizer: Any) -> list[Tensor]:
    """Of all parameters that have one."""
    params = (param for group in optimizer.param_groups for param in group["params"])
    return [param.grad for param in params if param.grad is not None]
