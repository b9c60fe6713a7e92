"""Step markers and what belongs to them: `import habana_frameworks.torch.core`."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from habana_frameworks._emulation.settings import SETTINGS
from habana_frameworks.torch.core import step_closure
from habana_frameworks.torch.core.step_closure import (
    add_step_closure,
    iter_mark_step,
    mark_step,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "add_step_closure",
    "hpu_initialize",
    "hpu_inference_initialize",
    "hpu_inference_set_env",
    "hpu_reset_inference_env",
    "hpu_set_inference_env",
    "iter_mark_step",
    "mark_step",
    "quantization_env",
    "step_closure",
]

if not SETTINGS.lazy:
    for _name in ("mark_step", "iter_mark_step", "add_step_closure"):
        logging.getLogger("habana_frameworks").warning(
            "Calling %s function does not have any effect. It's lazy mode only "
            "functionality. (warning logged once)",
            _name,
        )


def hpu_initialize(*args: Any, **kwargs: Any) -> None:
    """Prepares a model for quantized inference on a Gaudi; nothing to do here."""


def hpu_inference_initialize(*args: Any, **kwargs: Any) -> None:
    """As `hpu_initialize`."""


def hpu_inference_set_env() -> None:
    """Sets inference switches on a Gaudi; nothing to do here."""


def hpu_set_inference_env() -> None:
    """As `hpu_inference_set_env`."""


def hpu_reset_inference_env() -> None:
    """Undoes `hpu_set_inference_env`."""


@contextmanager
def quantization_env(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Quantization switches on a Gaudi; nothing to do here."""
    yield
