"""The user's model while a training executor owns its weights.

Its class becomes a subclass, and so do its parameters and buffers: whoever reads them
on the host gets what the device has trained, fetched once per run that changed it.
Written to disk, all of them are plain torch objects again.
"""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

import copy
import copyreg
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from poptorch._errors import Error
from poptorch._refusals import Stack, collecting, stack_here
from poptorch._torch_private import DisableTorchFunctionSubclass, leaves_of
from poptorch.enums import CommGroupType

KEY = "_poptorch_executor"
GROUPING = "_poptorch_replica_grouping"
_WRITTEN = "_poptorch_written"
_WRITES = re.compile(r"data\.__[gs]et__|[^_]_$|__(i\w+|setitem)__$")
"""Of calls that change a parameter, or give somebody else its memory."""


def _sync_all(values: Any) -> None:
    for leaf in leaves_of(values):
        owner = leaf.__dict__.get(KEY) if isinstance(leaf, torch.Tensor) else None
        if owner is not None:
            owner.copyWeightsToHostIfNeeded()


def _fetch_and_call(
    cls: type,
    func: Callable[..., Any],
    types: Any,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Fetch, then do what torch does."""
    _sync_all((args, kwargs))
    if args and collecting() is not None and _WRITES.search(_called(func)):
        args[0].__dict__[_WRITTEN] = stack_here()
    with DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))


def _called(func: Callable[..., Any]) -> str:
    """Its name; of an attribute the name of that too."""
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")
    return f"{attribute}.{getattr(func, '__name__', '')}"


def written_at(parameter: torch.Tensor) -> Stack:
    """The calls that led to what may have changed it last on the host."""
    found: Stack = parameter.__dict__.get(_WRITTEN, ())
    return found


class PoptorchParameter(nn.Parameter):
    """A parameter whose newest values may be on the device."""

    __torch_function__: Any = classmethod(_fetch_and_call)

    def replicaGrouping(
        self, comm_group_type: Any, shards: int, variable_retrieval_mode: Any
    ) -> None:
        """Give groups of replicas values of their own, along the first dimension.

        `shards` replicas share one value: neighbours (Consecutive), or those that are
        as far apart as there are groups (Orthogonal). With NoGrouping none share.

        Raises:
            Error: The model is compiled already, or not a kind of group.
        """
        owner = self.__dict__.get(KEY)
        if owner is not None and owner.isCompiled():
            raise Error("replicaGrouping must be called before the model is compiled")
        if not isinstance(comm_group_type, CommGroupType):
            raise Error(f"not a CommGroupType: {comm_group_type!r}")
        self.__dict__[GROUPING] = (comm_group_type, shards)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a plain parameter."""
        _sync_all(self)
        with DisableTorchFunctionSubclass():
            return nn.Parameter(self.detach(), self.requires_grad).__reduce_ex__(
                protocol
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> PoptorchParameter:
        """Another parameter of the same executor."""
        _sync_all(self)
        with DisableTorchFunctionSubclass():
            twin = nn.Parameter(self.detach().clone(), self.requires_grad)
            hook(twin, self.__dict__.get(KEY))
        memo[id(self)] = twin
        return twin  # type: ignore[return-value]


class PoptorchBuffer(torch.Tensor):
    """A buffer whose newest values may be on the device."""

    __torch_function__: Any = classmethod(_fetch_and_call)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As a plain tensor."""
        _sync_all(self)
        with DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor).detach().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        """Another buffer of the same executor."""
        _sync_all(self)
        with DisableTorchFunctionSubclass():
            twin = self.as_subclass(torch.Tensor).detach().clone()
            hook(twin, self.__dict__.get(KEY))
        memo[id(self)] = twin
        return twin


def hook(tensor: torch.Tensor, executor: Any) -> None:
    """Make a plain parameter or buffer fetch what the device has."""
    if type(tensor) is nn.Parameter:
        tensor.__class__ = PoptorchParameter
    elif type(tensor) is torch.Tensor:
        tensor.__class__ = PoptorchBuffer
    else:
        return
    tensor.__dict__[KEY] = executor


def unhook(tensor: torch.Tensor) -> None:
    """Make it a plain torch object again."""
    tensor.__dict__.pop(KEY, None)
    if type(tensor) is PoptorchParameter:
        tensor.__class__ = nn.Parameter  # type: ignore[assignment]
    elif type(tensor) is PoptorchBuffer:
        tensor.__class__ = torch.Tensor  # type: ignore[assignment]


class WrappedModule:
    """Mixed into the class of a wrapped model, before the user's own class."""

    _poptorch_base: type

    def _poptorch_sync(self) -> None:
        executor = self.__dict__.get(KEY)
        if executor is not None:
            executor.copyWeightsToHostIfNeeded()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Fetch the weights if the device has newer ones; whether it had."""
        executor = self.__dict__.get(KEY)
        return executor is not None and executor.copyWeightsToHostIfNeeded()

    def destroy(self) -> None:
        """Destroy the executor that owns this model, and unwrap the model."""
        executor = self.__dict__.get(KEY)
        if executor is not None:
            executor.destroy()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on the host with the newest weights."""
        self._poptorch_sync()
        return super().__call__(*args, **kwargs)  # type: ignore[misc]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Fetch, then as torch."""
        self._poptorch_sync()
        return super().named_parameters(*args, **kwargs)  # type: ignore[misc,no-any-return]

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Fetch, then as torch."""
        self._poptorch_sync()
        return super().named_buffers(*args, **kwargs)  # type: ignore[misc,no-any-return]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Fetch, then as torch."""
        self._poptorch_sync()
        return super().state_dict(*args, **kwargs)  # type: ignore[misc]

    def __copy__(self) -> Any:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self._poptorch_sync()
        executor = self.__dict__.get(KEY)
        memo[id(executor)] = executor
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            twin.__dict__[name] = copy.deepcopy(value, memo)
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._poptorch_sync()
        state = {k: v for k, v in self.__dict__.items() if k != KEY}
        plain = (self._poptorch_base, object, None)
        return copyreg._reconstructor, plain, state  # type: ignore[attr-defined]


def is_wrapped(model: Any) -> bool:
    """Whether a training executor owns the model."""
    return isinstance(model, WrappedModule) and model.__dict__.get(KEY) is not None


def owner(model: Any) -> Any:
    """The training executor of a wrapped model; None for any other."""
    return model.__dict__.get(KEY) if isinstance(model, WrappedModule) else None


def wrap(model: nn.Module, executor: Any) -> None:
    """Give the model, its parameters and its buffers to `executor`, in place.

    Raises:
        RuntimeError: Another executor has it.
    """
    if is_wrapped(model):
        raise RuntimeError(
            "Model has already been wrapped in 'poptorch.trainingModel'. Call "
            "model.destroy() on the model to unwrap before wrapping again."
        )
    base = type(model)
    kind = type(
        f"Poptorch{base.__name__}",
        (WrappedModule, base),
        {"_poptorch_base": base, "__module__": base.__module__},
    )
    for tensor in (*model.parameters(), *model.buffers()):
        hook(tensor, executor)
    model.__class__ = kind
    model.__dict__[KEY] = executor


def unwrap(model: nn.Module) -> None:
    """Undo `wrap`; without effect on a plain model."""
    if not isinstance(model, WrappedModule):
        return
    model.__dict__.pop(KEY, None)
    model.__class__ = model._poptorch_base
    for tensor in (*model.parameters(), *model.buffers()):
        unhook(tensor)
