"""What a capture refuses because tensors have no values, or torch no way into it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from poptorch import _torch_private as private
from poptorch._errors import Error

_WANTS_VALUES = re.compile("not allocated yet|data pointer|doesn't have storage")
"""What torch's kernels say of tensors without values."""


def own_backward(kind: type) -> Error:
    """Of a function whose backward is written by the user."""
    return Error(
        f"{kind.__qualname__} is a torch.autograd.Function, whose backward is not used "
        "here, as gradients are derived from the forward operations; write it with "
        "torch's own operations, or as a custom operator of PopART"
    )


def forward_of(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The forward operations alone of such a function."""
    if kind.setup_context is not torch.autograd.Function.setup_context:
        return kind.forward(*args, **kwargs)
    return kind.forward(_Context(), *args, **kwargs)


class _Context:
    """Takes what a forward keeps for its backward."""

    def _nothing(self, *_: Any) -> None:
        pass

    save_for_backward = save_for_forward = mark_dirty = _nothing
    mark_non_differentiable = set_materialize_grads = _nothing


def no_value(name: str) -> Error:
    """Of an operation that asks for a value."""
    return Error(
        f"aten::{name.strip('_')} is not supported in a static graph: the values of "
        "tensors on the IPU are not known while the model is compiled (aten::item is "
        "not supported)"
    )


class DynamicShapeError(Error, private.DynamicOutputShapeException):
    """An output whose shape depends on values; known by torch's name for it too."""

    def __init__(self, name: str, func: Any) -> None:
        super().__init__(
            f"{name} is not supported on the IPU: the shape of its output depends on "
            f"values ({func})"
        )
        self.args = (self.message,)  # torch's class keeps another
        self.func = func

    def __str__(self) -> str:
        return self.message


@contextmanager
def as_device_errors(name: str) -> Iterator[None]:
    """Torch's errors about tensors without values, as the device's."""
    try:
        yield
    except private.DataDependentOutputException as error:
        raise no_value(name) from error
    except private.DynamicOutputShapeException as error:
        raise DynamicShapeError(name, error.func) from error
    except RuntimeError as error:
        if not _WANTS_VALUES.search(str(error)):
            raise
        raise no_value(name) from error
