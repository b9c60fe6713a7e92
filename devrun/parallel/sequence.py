"""Parts of the sequence where each process had the whole of it.

Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.2: norms, dropout and residuals
between divided matrices work position by position, so that each of the processes that
divide the matrices has some of the positions. An exchange that was one sum of all
becomes a sum of parts and a gathering of them, of as many bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import SequenceParallel
from torch.nn.modules.batchnorm import _NormBase

from devrun.errors import ConfigError, DataError
from devrun.parallel.options import SEQUENCE_STYLES


class DropoutStreams:
    """Switches streams as modules are passed.

    Args:
        place: of this process among those that divide a matrix.
        device: has `rng_state` and `set_rng_state`; None where the host's is all.
    """

    def __init__(self, place: int, device: Any) -> None:
        self._place, self._device = place, device
        self._common: Any = None
        self._owner: nn.Module | None = None
        self._passed: set[nn.Module] = set()

    def watch(self, model: nn.Module, styles: Mapping[str, str]) -> None:
        """Follow the modules of `model` that `styles` divides."""
        for name, style in styles.items():
            module = model.get_submodule(name)
            owner = model.get_submodule(name.rpartition(".")[0])
            if style == "rowwise":
                module.register_forward_pre_hook(self.leave)
            else:
                module.register_forward_hook(self._entering(owner))

    def _entering(self, owner: nn.Module) -> Any:
        def enter(module: nn.Module, _: Any, __: Any) -> None:
            inside = self._common is not None and owner is self._owner
            # a recomputation may end before it leaves: what is left then is no state
            if inside and module not in self._passed:
                self._passed.add(module)
                return
            self.enter(module)
            self._owner, self._passed = owner, {module}

        return enter

    def enter(self, module: nn.Module) -> None:
        """Draw from a stream of this process's own from here on, if `module` trains."""
        self._common = None
        if not module.training:
            return
        seed = int(torch.randint(2**62, (1,)).item())
        states = None if self._device is None else self._device.rng_state()
        self._common = (torch.get_rng_state(), states)
        torch.manual_seed(seed + self._place)

    def leave(self, *_: Any) -> None:
        """Draw as the others do again."""
        if self._common is None:
            return
        (host, device), self._common = self._common, None
        torch.set_rng_state(host)
        if device is not None:
            self._device.set_rng_state(device)


_NORMS = ("sequence", "gather")


class SequenceParts:
    """Follows the parts from module to module, which have plain tensors of them.

    torch's own styles take the whole for as many times the part as there are processes.
    Here its length is noted where it is divided, so that it need not be a multiple.

    Args:
        mesh: of the processes that divide the matrices.
        streams: each draws from one of its own while it has a part.
    """

    def __init__(self, mesh: Any, streams: DropoutStreams) -> None:
        self._mesh, self._streams = mesh, streams
        self._whole = 0
        """Positions that all parts have together."""
        self._inside = False
        self._trained: Mapping[str, bool] = {}

    def prepare(self, model: nn.Module, styles: Mapping[str, str]) -> dict[str, Any]:
        """Hooks that come before torch's; torch's styles of what has only some norms.

        Raises:
            ConfigError: a plan that cannot be, as it does not begin or does not end.
        """
        for style in ("split", "gather"):
            if style not in styles.values():
                raise ConfigError(
                    "parallel: sequence: true needs a plan that says where the parts "
                    f"begin and end, and {style} is not in it: give plan: {{PATTERN: "
                    "split, PATTERN: sequence, PATTERN: gather}",
                    key="plan",
                )
        model.register_forward_pre_hook(self._outside)
        self._trained = {n: p.requires_grad for n, p in model.named_parameters()}
        found: dict[str, Any] = {}
        for name, style in styles.items():
            module = model.get_submodule(name)
            if style == "split":
                _change_input(module, self._split)
            elif style in _NORMS and _own(module):
                if isinstance(module, _NormBase):
                    raise ConfigError(
                        f"parallel: sequence: {name} is a batch norm, whose statistics "
                        "are of all positions: leave sequence out",
                        key="plan",
                    )
                _change_input(module, self._part_for(name))
                found[name] = SequenceParallel(use_local_output=style == "sequence")
            elif style == "sequence":
                raise ConfigError(
                    f"parallel: plan has sequence for {name}, which has no weights of "
                    "its own: name the norms",
                    key="plan",
                )
        for name in _entrances(model, styles):
            into = self._part_for(name)
            _change_input(model.get_submodule(name), lambda x, _, f=into: _whole(f(x)))
        return found

    def finish(self, model: nn.Module, styles: Mapping[str, str]) -> None:
        """Hooks that come after torch's; `model` has its divided weights."""
        for name, param in model.named_parameters():  # torch's style trains all norms
            param.requires_grad_(self._trained[name])
        for name, style in styles.items():
            module = model.get_submodule(name)
            if style == "gather":
                module.register_forward_hook(self._gathering(name))
            if style in _NORMS:
                for param in _own(module):
                    # each has the gradient of its own positions
                    if param.requires_grad:
                        param.register_hook(_whole)
        for name, module in model.named_modules():
            if any(not isinstance(param, DTensor) for param in _own(module)):
                module.register_forward_pre_hook(self._refusing(name))

    def _split(self, x: Tensor, module: nn.Module) -> Tensor:
        count = self._mesh.size()
        length = x.shape[1] if x.dim() > 1 else 1
        if (count - 1) * -(-length // count) >= length:
            raise DataError(
                f"parallel: sequence: true cannot divide {length} positions (dimension "
                f"1 of an input {tuple(x.shape)}) over {count} processes, so that each "
                "has some: give longer sequences, or fewer processes along tensor"
            )
        self._whole, self._inside = length, True
        self._streams.enter(module)
        all_have = DTensor.from_local(x, self._mesh, [Replicate()], run_check=False)
        return all_have.redistribute(placements=[Shard(1)]).to_local()

    def _part_for(self, name: str) -> Callable[..., DTensor]:
        def part(x: Tensor, *_: Any) -> DTensor:
            """`x` with where the rest of it is."""
            if isinstance(x, DTensor):
                return x
            count, rank = self._mesh.size(), self._mesh.get_local_rank()
            most = -(-self._whole // count)
            here = min(most, self._whole - rank * most)
            if x.dim() < 2 or x.shape[1] != here:
                raise ConfigError(
                    f"parallel: sequence: {name} takes parts of a sequence, (N, "
                    f"{here or 'T'}, ...) here, and was given {tuple(x.shape)}: the "
                    f"plan must split it before {name}, and gather it after",
                    key="plan",
                )
            shape = torch.Size((x.shape[0], self._whole, *x.shape[2:]))
            stride = torch.empty(shape, device="meta").stride()
            place: Any = [Shard(1)]
            return DTensor.from_local(
                x, self._mesh, place, run_check=False, shape=shape, stride=stride
            )

        return part

    def _gathering(self, name: str) -> Any:
        into = self._part_for(name)

        def gather(module: nn.Module, _: Any, out: Tensor) -> Tensor:
            self._inside = False
            self._streams.leave()
            return _whole(into(out)).to_local()

        return gather

    def _outside(self, *_: Any) -> None:
        self._inside = False

    def _refusing(self, name: str) -> Any:
        def refuse(*_: Any) -> None:
            if self._inside:
                raise ConfigError(
                    f"parallel: sequence: {name} has weights that plan does not name, "
                    "and each process would have gradients of its own positions only: "
                    "name it as colwise, rowwise, qkv, sequence or gather",
                    key="plan",
                )

        return refuse


def is_of_sequence(style: str) -> bool:
    return style in SEQUENCE_STYLES


def _own(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters(recurse=False))


def _whole(spread: DTensor) -> DTensor:
    return spread.redistribute(placements=[Replicate()])


def _entrances(model: nn.Module, styles: Mapping[str, str]) -> list[str]:
    """Where the parts are gathered for divided matrices.

    One gathering is enough for queries, keys and values, so that it is where the module
    begins that has them; where that module has norms too, at each matrix.
    """
    norms = [name for name, style in styles.items() if is_of_sequence(style)]
    found: dict[str, None] = {}
    for name in (n for n, s in styles.items() if s in ("colwise", "qkv")):
        owner = name.rpartition(".")[0]
        within = any(norm.startswith(f"{owner}.") for norm in norms)
        found[owner if owner and not within else name] = None
    return list(found)


def _change_input(module: nn.Module, change: Callable[..., Any]) -> None:
    """`change` the first tensor of numbers that `module` is called with."""

    def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
        given = {**dict(enumerate(args)), **kwargs}
        for key, value in given.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                given[key] = change(value, module)
                break
        changed = tuple(given.pop(index) for index in range(len(args)))
        return changed, given

    module.register_forward_pre_hook(hook, with_kwargs=True)
