"""Modules whose forward is replayed: one recording for each signature of inputs."""

from __future__ import annotations

import copy
import inspect
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from habana_frameworks._emulation.capture import Recording
from habana_frameworks._emulation.recorder import GRAPH_SKIPPED, RECORDER
from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks._emulation.torch_private import is_view
from habana_frameworks.torch.hpu.graph_callables import Pair, fill, recorded, replay

_log = logging.getLogger("habana_frameworks")


def pack(value: Any, tensors: list[Tensor]) -> Any:
    """A skeleton of `value` with numbers for its device tensors, put in `tensors`."""
    if isinstance(value, Tensor) and value.device.type == "hpu":
        tensors.append(value)
        return _Slot(len(tensors) - 1)
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, item in value.items():
            made[key] = pack(item, tensors)
        return made
    if type(value) in (list, tuple):
        return type(value)(pack(item, tensors) for item in value)
    return value


def unpack(skeleton: Any, tensors: Any) -> Any:
    """The value that `pack` took apart, with these tensors."""
    if isinstance(skeleton, _Slot):
        return tensors[skeleton.number]
    if isinstance(skeleton, dict):
        made = copy.copy(skeleton)
        for key, item in skeleton.items():
            made[key] = unpack(item, tensors)
        return made
    if type(skeleton) in (list, tuple):
        return type(skeleton)(unpack(item, tensors) for item in skeleton)
    return skeleton


class _Slot:
    """The place of a tensor in a skeleton."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"#{self.number}"


class TensorPacker:
    """`pack` and `unpack` under the SDK's name."""

    def pack(self, value: Any) -> tuple[list[Tensor], Any]:
        """(device tensors, skeleton)."""
        tensors: list[Tensor] = []
        skeleton = pack(value, tensors)
        return tensors, skeleton

    def unpack(self, tensors: list[Tensor], metadata: Any) -> Any:
        """The value again."""
        return unpack(metadata, tensors)


def input_hash(skeleton: Any, tensors: list[Tensor]) -> int:
    """A signature: shapes, view or not, autocast, and the other arguments' values.

    As in the SDK the dtype is not part of it.
    """
    layouts = tuple((tuple(t.shape), is_view(t)) for t in tensors)
    return hash((repr(skeleton), layouts, torch.is_autocast_enabled("hpu")))


def _static(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)


class _Buffers:
    """Puts a module's buffers back: recording runs it once more than the user did."""

    def __init__(self, module: nn.Module) -> None:
        self._kept = [(b, b.detach().clone()) for b in module.buffers()]

    def restore(self) -> None:
        """As when this was made."""
        with torch.no_grad():
            for buffer, value in self._kept:
                buffer.copy_(value)


class _Graphed:
    """Recordings by signature, for training."""

    def __init__(self, module: nn.Module, options: dict[str, Any]) -> None:
        self.module = module
        self.original = module.forward
        self.options = options
        self.pairs: dict[int, tuple[Pair, list[Any]]] = {}
        self.used: Counter[int] = Counter()
        self.iteration = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args:
            names = list(inspect.signature(self.original).parameters)
            kwargs = {**dict(zip(names, args)), **kwargs}
        active = self.module.training and torch.is_grad_enabled() and SETTINGS.lazy
        if not active:
            return self.original(**kwargs)
        tensors: list[Tensor] = []
        skeleton = pack(kwargs, tensors)
        key = input_hash(skeleton, tensors)
        if self.options["have_grad_accumulation"]:
            key = hash((key, self.iteration == 0))
        self.used[key] += 1
        if key not in self.pairs and not self._room():
            RECORDER.note(GRAPH_SKIPPED, "more signatures than max_graphs")
            return self.original(**kwargs)
        if key not in self.pairs:
            self.pairs[key] = self._record(skeleton, tensors)
        pair, shape = self.pairs[key]
        return unpack(shape[-1], pair(*tensors))

    def _room(self) -> bool:
        if len(self.pairs) < self.options["max_graphs"]:
            return True
        if not self.options["use_lfu"]:
            return False
        del self.pairs[min(self.pairs, key=lambda key: self.used[key])]
        return True

    def _record(self, skeleton: Any, tensors: list[Tensor]) -> tuple[Pair, list[Any]]:
        shape: list[Any] = []

        def run(*static: Tensor) -> tuple[Tensor, ...]:
            found: list[Tensor] = []
            shape.append(pack(self.original(**unpack(skeleton, static)), found))
            return tuple(found)

        buffers = _Buffers(self.module)
        parameters = tuple(self.module.parameters())
        unused = self.options["allow_unused_input"]
        pair = Pair(run, _static(tensors), parameters, unused)
        buffers.restore()
        return pair, shape


class ModuleCacher:
    """`ModuleCacher(max_graphs)(model)`: training by replay, a pair a signature.

    Active while the model trains with gradients in lazy mode; beyond `max_graphs`
    signatures it runs as it is, which is counted. Wrap before DDP.
    """

    def __init__(self, max_graphs: int = 10) -> None:
        self.max_graphs = max_graphs

    def __call__(
        self,
        model: nn.Module,
        use_lfu: bool = False,
        inplace: bool = True,
        allow_unused_input: bool = False,
        asynchronous: bool = False,
        have_grad_accumulation: bool = False,
        log_frequency: int = 100,
        verbose: bool = False,
        disable_tensor_cache: bool = False,
        dry_run: bool = False,
    ) -> nn.Module:
        """The model with a replaying forward; a copy with `inplace=False`."""
        parallel = nn.DataParallel | nn.parallel.DistributedDataParallel
        if isinstance(model, parallel):
            raise AssertionError(
                "Use DataParallel/DistributedDataParallel only after wrapping with "
                "ModuleCacher"
            )
        _check_forward(model)
        if not inplace:
            model = copy.deepcopy(model)
        options = {
            "max_graphs": self.max_graphs,
            "use_lfu": use_lfu,
            "allow_unused_input": allow_unused_input,
            "have_grad_accumulation": have_grad_accumulation,
        }
        graphed = _Graphed(model, options)
        attributes: dict[str, Callable[..., Any]] = {
            "forward": lambda *args, **kwargs: graphed(*args, **kwargs),
            "set_iteration_count": lambda n: setattr(graphed, "iteration", n),
        }
        model.__dict__.update(attributes)
        return model


def _check_forward(model: nn.Module) -> None:
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise AssertionError(
                f"forward of {type(model).__name__} may use neither *args nor "
                f"positional-only parameters: {parameter.name}"
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            _log.warning("**%s of forward is not given to graphs", parameter.name)


class _Inference:
    """Forward recordings by signature, without gradients."""

    def __init__(self, original: Any, max_graphs: int | None) -> None:
        self.original = original
        self.max_graphs = max_graphs
        self.kept: dict[int, tuple[Recording, tuple[Tensor, ...], Any, Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bypass = kwargs.pop("bypass_hpu_graphs", False)
        kwargs.pop("warmup_mode", None)
        kwargs.pop("cache_tensors_list", None)
        if bypass:
            return self.original(*args, **kwargs)
        tensors: list[Tensor] = []
        skeleton = pack((args, kwargs), tensors)
        key = input_hash(skeleton, tensors)
        if key not in self.kept:
            if self.max_graphs is not None and len(self.kept) >= self.max_graphs:
                RECORDER.note(GRAPH_SKIPPED, "more signatures than max_graphs")
                return self.original(*args, **kwargs)
            self.kept[key] = self._record(skeleton, tensors)
        recording, static, outputs, shape = self.kept[key]
        fill(static, tensors)
        replay(recording)
        return unpack(shape, outputs)

    def _record(self, skeleton: Any, tensors: list[Tensor]) -> Any:
        static = tuple(t.detach().clone() for t in tensors)
        found: list[Tensor] = []

        def run() -> Any:
            given, named = unpack(skeleton, static)
            with torch.no_grad():
                return pack(self.original(*given, **named), found)

        recording, shape = recorded(run)
        return recording, static, [t.detach() for t in found], shape


def wrap_in_hpu_graph(
    module: nn.Module,
    asynchronous: bool = False,
    disable_tensor_cache: bool = False,
    dry_run: bool = False,
    max_graphs: int | None = None,
) -> nn.Module:
    """The module with a replaying forward for inference; not for training.

    Outputs are the same tensors at each replay, overwritten by the next. Adds
    `clear_cache()` and `clear_inputs()`; the call arguments `bypass_hpu_graphs`,
    `warmup_mode` and `cache_tensors_list` are taken out.
    """
    graphed = _Inference(module.forward, max_graphs)
    attributes: dict[str, Callable[..., Any]] = {
        "forward": lambda *args, **kwargs: graphed(*args, **kwargs),
        "clear_cache": graphed.kept.clear,
        "clear_inputs": lambda: None,
    }
    module.__dict__.update(attributes)
    return module
