"""Gets past operators that a device refuses: it moves their tensors, and goes on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from devrun.probes import sites
from devrun.probes.finding import Finding
from devrun.probes.notebook import Notebook
from devrun.tensors import map_tensors, tensors_in
from devrun.text import joined

_REFUSALS = (RuntimeError, TypeError, NotImplementedError)
_PACK = "_pack_padded_sequence"
MEANS = {
    "two devices": (
        "a tensor of the host meets one of the device",
        "y.to(x.device) here, device=x.device where it is made, or register_buffer for "
        "one that the module keeps",
    ),
    "lengths": (
        "torch takes the lengths of sequences from the host alone",
        "keep the lengths on the host, or lengths.cpu(), for which the host waits",
    ),
    "refused": (
        "the device refuses it",
        "do it on the host, x.detach().cpu(), once in many updates, or with other "
        "operators",
    ),
}
"""Kind of what breaks -> what it means, and the remedy."""


class Hosted(TorchFunctionMode):
    """Within, a call that fails on `device` is tried again, where it may succeed.

    Tensors of the host that meet the device's are moved to it. Where there are none, or
    that does not help, the call is made on the host and its results are moved back.
    What fails there too fails as before.
    """

    def __init__(self, device: str, note: Notebook) -> None:
        super().__init__()
        self._device = device
        self._note = note
        self._undo: tuple[Any, Any] | None = None

    def __enter__(self) -> Any:
        kind = type(torch.empty(0, device=self._device))
        given = vars(kind).get("numpy")
        if given is not None:  # an emulator's own, which torch does not show to modes
            self._undo = (kind, given)
            found = self._found

            def numpy(tensor: Any, *, force: bool = False) -> Any:
                if not force:
                    error = TypeError("can't convert a device's tensor to numpy")
                    found("refused", given, error)
                return given(tensor, force=True)

            setattr(kind, "numpy", numpy)  # noqa: B010 - a method of another's
        return super().__enter__()

    def __exit__(self, *details: Any) -> None:
        if self._undo is not None:
            kind, given = self._undo
            setattr(kind, "numpy", given)  # noqa: B010
        super().__exit__(*details)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except _REFUSALS as error:
            for kind, call in self._ways(func, args, kwargs):
                try:
                    out = call(func, args, kwargs)
                except _REFUSALS:
                    continue
                self._found(kind, func, error)
                return out
            raise

    def _ways(self, func: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
        if _name(func) == _PACK:
            yield "lengths", self._packed
        places = {tensor.device.type for tensor in tensors_in((args, kwargs))}
        if self._device in places and len(places) > 1:
            yield "two devices", self._moved
        # what changes its operand would change a copy of it
        if self._device in places and not _name(func).endswith("_"):
            yield "refused", self._on_host

    def _packed(self, func: Any, args: Any, kwargs: Any) -> Any:
        padded, lengths, *rest = args
        return func(padded, lengths.cpu(), *rest)

    def _moved(self, func: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = _to(self._device, (args, kwargs))
        return func(*args, **kwargs)

    def _on_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = _to("cpu", (args, kwargs))
        return _to(self._device, func(*args, **kwargs))

    def _found(self, kind: str, func: Any, error: Exception) -> None:
        why, remedy = MEANS[kind]
        self._note.found(
            Finding(
                severity="breaks",
                kind=kind,
                what=_name(func).strip("_"),
                why=f"{why}: {_said(error)}",
                remedy=remedy,
                site=sites.here(3),
            )
        )


@contextmanager
def placed(within: AbstractContextManager[Any]) -> Iterator[None]:
    """`within`, and what a backward pass does has the line of its forward pass."""
    with warnings.catch_warnings(), within:
        warnings.filterwarnings("ignore", "Anomaly Detection")
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            yield


def _to(device: str, value: Any) -> Any:
    return map_tensors(lambda tensor: tensor.to(device), value)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


def _said(error: Exception) -> str:
    text = joined(error)
    return text if len(text) <= 200 else f"{text[:197]}..."
