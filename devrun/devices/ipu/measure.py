"""What each block of a model costs: operations, activations, parameters.

One micro-batch goes through a copy of the model whose tensors have shapes but no values
(`torch._subclasses.FakeTensorMode`), so nothing is computed and nothing of the model
changes. Counted for every block, that is for all that runs from its call to the call of
the next one:

- forward floating-point operations by `torch.utils.flop_counter` (those of matrix
  products and convolutions), attention as its products, as IPUs compute it;
- bytes that autograd keeps for the backward pass
  (`torch.autograd.graph.saved_tensors_hooks`), each storage once;
- bytes of the parameters, and of what the block is called with.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from devrun.errors import ConfigError, DevrunError
from devrun.models.step_module import StepModule
from devrun.text import joined


@dataclass(frozen=True)
class Block:
    """What runs from the call of the layer `name` to the call of the next block's."""

    name: str
    flops: int
    activation_bytes: int
    parameter_bytes: int
    trained_bytes: int
    """Of the parameters that are trained."""
    input_bytes: int


def measure(
    model: nn.Module,
    batch: Any,
    *,
    at_least: int = 1,
    names: Sequence[str] = (),
    where: str = "split",
) -> list[Block]:
    """The blocks of a model in the order of their calls; `at_least` so many if it can.

    Blocks are the layers of its chains (Sequential, ModuleList) and what is called
    between them. A layer that is called twice is no block of its own.

    Args:
        model: the user's module, or a `StepModule` of it, which runs the loss too.
        batch: one micro-batch, on the host.
        names: the first layers of the blocks, where they are chosen already.

    Raises:
        ConfigError: the model cannot be run without values.
    """
    timeline = _run(model, batch, _Watch(), where)
    if names:
        called = [name for name in names if name in timeline.calls]
        return _blocks(timeline, _in_order(timeline, called))
    names = _in_order(timeline, _inside(timeline, ""))
    while len(names) < at_least:
        wider = _expand_largest(timeline, names)
        if wider is None:
            break
        names = wider
    return _blocks(timeline, names)


def call_site(
    model: nn.Module, batch: Any, operation: str, files: Set[str]
) -> str | None:
    """`file:line` in one of `files` that leads to the first `aten::...` `operation`.

    None where it is not met, or where the model cannot be run without values.
    """
    watch = _Watch(operation, files)
    try:
        _run(model, batch, watch, "split")
    except ConfigError:
        return watch.place  # it may have been met before
    return watch.place


@dataclass
class _Call:
    """A module at its first call, with what had been counted until then."""

    flops: int
    activation_bytes: int
    input_bytes: int
    times: int = 1


class _Timeline:
    """Counts operations and kept bytes while a model runs, by module called."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.flops = FlopCounterMode(display=False)
        self.kept_bytes = 0
        self.calls: dict[str, _Call] = {}
        held = (*root.parameters(), *root.buffers())
        # storages are kept, or another one could come to have the same address
        self._seen = {s._cdata: s for s in (t.untyped_storage() for t in held)}
        for name, module in root.named_modules():
            module.register_forward_pre_hook(self._hook(name), with_kwargs=True)

    def keep(self, tensor: Tensor) -> Tensor:
        """Called by autograd with what the backward pass will read."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen[storage._cdata] = storage
            self.kept_bytes += storage.nbytes()
        return tensor

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def called(module: nn.Module, args: Any, kwargs: Any) -> None:
            if name in self.calls:
                self.calls[name].times += 1
                return
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            size = sum(t.numel() * t.element_size() for t in tensors)
            operations = self.flops.get_total_flops()
            self.calls[name] = _Call(operations, self.kept_bytes, size)

        return called


class _Watch(TorchDispatchMode):
    """Looks for one operation, and gives numbers that a model reads (`loss.item()`).

    Sizes do not depend on such numbers.
    """

    def __init__(
        self, operation: str | None = None, files: Set[str] = frozenset()
    ) -> None:
        super().__init__()
        self.operation, self.files = operation, files
        self.place: str | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self.place is None and func._schema.name == self.operation:
            frames = reversed(traceback.extract_stack())
            own = (
                f"{f.filename}:{f.lineno}" for f in frames if f.filename in self.files
            )
            self.place = next(own, None)
        if func is torch.ops.aten._local_scalar_dense.default:
            if isinstance(args[0], FakeTensor):
                return 1.0 if args[0].is_floating_point() else 1
        return func(*args, **(kwargs or {}))


def _run(model: nn.Module, batch: Any, watch: _Watch, where: str) -> _Timeline:
    step = model if isinstance(model, StepModule) else StepModule(model)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with fake, FakeCopyMode(fake):
            twin = copy.deepcopy(step).train()
        timeline = _Timeline(twin.module)
        with (
            fake,
            timeline.flops,
            watch,
            sdpa_kernel(SDPBackend.MATH),
            saved_tensors_hooks(timeline.keep, lambda kept: kept),
            torch.enable_grad(),
        ):
            twin(batch, "train" if step is model else "predict")
    except DevrunError:
        raise
    except Exception as error:
        cause = joined(error)[:200]
        raise ConfigError(
            f"{where}: auto cannot follow {step.model_name} without values "
            f"({type(error).__name__}: {cause}); give the edges yourself"
        ) from error
    return timeline


def _in_order(timeline: _Timeline, names: list[str]) -> list[str]:
    place = {name: index for index, name in enumerate(timeline.calls)}
    return sorted(names, key=place.__getitem__)


def _inside(timeline: _Timeline, name: str) -> list[str]:
    """The blocks in the module `name`, which is itself divided."""
    found: list[str] = []
    prefix = f"{name}." if name else ""
    for child_name, child in timeline.root.get_submodule(name).named_children():
        full = prefix + child_name
        call = timeline.calls.get(full)
        if call is None or (call.times == 1 and _is_divided(child)):
            found += _inside(timeline, full)  # a list of layers is not called itself
        elif call.times == 1:
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


def _expand_largest(timeline: _Timeline, names: list[str]) -> list[str] | None:
    """The block with most operations that has blocks in it, divided; None: no such."""
    for block in sorted(_blocks(timeline, names), key=lambda block: -block.flops):
        inside = _inside(timeline, block.name)
        if len(inside) > 1:
            rest = [name for name in names if name != block.name]
            return _in_order(timeline, rest + inside)
    return None


def _blocks(timeline: _Timeline, names: list[str]) -> list[Block]:
    calls = [timeline.calls[name] for name in names]
    flops = [0, *(call.flops for call in calls[1:]), timeline.flops.get_total_flops()]
    kept = [0, *(call.activation_bytes for call in calls[1:]), timeline.kept_bytes]
    parameters = _parameter_bytes(timeline, names)
    return [
        Block(
            name=name,
            flops=flops[index + 1] - flops[index],
            activation_bytes=kept[index + 1] - kept[index],
            parameter_bytes=parameters[index][0],
            trained_bytes=parameters[index][1],
            input_bytes=calls[index].input_bytes,
        )
        for index, name in enumerate(names)
    ]


def _parameter_bytes(timeline: _Timeline, names: list[str]) -> list[list[int]]:
    """[all, trained] for each block: a parameter is where its module is called first.

    One of a module that is never called counts where the module around it is called.
    """
    place = {name: index for index, name in enumerate(timeline.calls)}
    begins = [place[name] for name in names]
    owners = []
    for name, module in timeline.root.named_modules():
        while name not in place and name:
            name = name.rpartition(".")[0]
        owners.append((place.get(name, 0), module))
    sizes = [[0, 0] for _ in names]
    seen: set[int] = set()
    for at, module in sorted(owners, key=lambda owner: owner[0]):
        block = max((i for i, begin in enumerate(begins) if begin <= at), default=0)
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                size = parameter.numel() * parameter.element_size()
                sizes[block][0] += size
                sizes[block][1] += size if parameter.requires_grad else 0
    return sizes
