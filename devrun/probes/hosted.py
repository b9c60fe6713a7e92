"""Gets past operators that a device refuses: it moves their tensors, and goes on."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_forward_pre_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils.data.dataloader import _BaseDataLoaderIter

from devrun.probes import sites
from devrun.probes.births import (
    GLOBAL,
    birth_of,
    built_as,
    built_at,
    built_on_host,
    hidden,
    tag_attributes,
)
from devrun.probes.finding import MISMATCH, Finding
from devrun.probes.notebook import Notebook
from devrun.probes.origins import DRAWS, ON_HOST, PLACED, Host
from devrun.tensors import held, map_tensors, tensors_in
from devrun.text import joined

SPARSE = "layout torch.sparse_"
"""In the words with which a device refuses one."""
_REFUSALS = (RuntimeError, TypeError, NotImplementedError)
_ENGINE = "_engine_run_backward"
_AS_TENSOR = "torch.as_tensor(..., device=x.device)"
_MEETS = "it stays on the host, and meets the device's at "
_PACK = "_pack_padded_sequence"
_CHANGES = re.compile(r"\w+[^_]_|__(i[^n]\w+|setitem)__")
_BATCH = Host("a batch")
_FILLS = ("normal_", "uniform_", "random_", "bernoulli_", "fill_", "zero_")
"""Methods that give a tensor, as `torch.FloatTensor(2, 3)` makes it, its values."""
_MAY_STAY = re.compile(r"__(get|set)item__|index_put_?|ctc_loss")
"""Functions that take some of their tensors from the host too."""
MEANS = {
    MISMATCH: (
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
    "sparse": (
        "the device has dense tensors alone",
        "x.to_dense() of it on the host; a mask of 0 and 1 in place of x.to_sparse()",
    ),
}
"""Kind of what breaks -> what it means, and the remedy."""


class Hosted(TorchFunctionMode):
    """Within, a call that fails on `device` is tried again, where it may succeed.

    Tensors of the host that meet the device's are moved to it. Where there are none, or
    that does not help, the call is made on the host and its results are moved back.
    What fails there too fails as before.

    Args:
        captures: whether what is refused is told later than it is called.
    """

    def __init__(self, device: str, note: Notebook, captures: bool = False) -> None:
        super().__init__()
        self._device, self._captures = device, captures
        self._note = note

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for one in tensors_in((args, kwargs)) if self._captures else ():
            if type(one) is Tensor and one.is_cpu and PLACED.of(one) is None:
                if (born := built_as([one])) is not None:
                    PLACED.tag(one, born)
        if kwargs.get("generator") in ON_HOST and self._fills(args, kwargs):
            if site := sites.here(2):
                self._note.found(Finding("breaks", MISMATCH, *DRAWS, site))
            if not _changes(func):
                args, kwargs = self._on_host(args, kwargs)
                return to_device(self._device, func(*args, **kwargs))
            kwargs = {**kwargs, "generator": None}
        try:
            out = func(*args, **kwargs)
        except _REFUSALS as error:
            for kind, way in self._ways(error, func, args, kwargs):
                try:
                    given, named = way(args, kwargs)
                    # here, as who asks is below the function of a mode
                    out = func(*given, **named)
                    if kind != "lengths":
                        # as it is once mended, also where what is changed in place
                        # stays on the host
                        out = to_device(self._device, out)
                except _REFUSALS:
                    continue
                births = _births(func, args, kwargs) if kind == MISMATCH else ()
                if kind == MISMATCH and not births:
                    hosts = (one for one in tensors_in((args, kwargs)) if one.is_cpu)
                    births = [born] if (born := built_as(hosts)) else ()
                self.found(kind, func, error, births)
                return out
            raise
        return self.mended(self._born(_name(func), args, kwargs, out), out)

    def mended(self, born: Host | None, made: Any) -> Any:
        """`made`, on the device where it is told that it is to be: what comes of it is
        as once mended."""
        return to_device(self._device, made) if born in self._note.mended else made

    def _ways(
        self, error: Exception, func: Any, args: Any, kwargs: Any
    ) -> Iterator[tuple[str, Any]]:
        """Kind of what is refused, and what gives the arguments to try it with."""
        if _name(func) == _PACK:
            yield "lengths", self._packed
        if SPARSE in str(error):
            yield "sparse", partial(self._moved, func)
            yield "sparse", self._on_host
        places = {tensor.device.type for tensor in tensors_in((args, kwargs))}
        if self._device in places and len(places) > 1:
            yield MISMATCH, partial(self._moved, func)
        # what changes its operand would change a copy of it
        if self._device in places and not _changes(func):
            yield "refused", self._on_host

    def _born(self, name: str, args: Any, kwargs: Any, out: Any) -> Host | None:
        """Keep where a tensor of the host was made, also for what comes of it.

        Returns:
            How this call made it, if it is new.
        """
        if not isinstance(out, Tensor) or not out.is_cpu:
            return None
        made = birth_of(name, args, kwargs, self._on_device)
        born = made or born_of(tensors_in((args, kwargs)))
        if born is None and name in _FILLS:
            born = built_on_host()
        if born is not None:
            PLACED.tag(out, born)
        return made

    def _on_device(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.device.type == self._device

    def _fills(self, args: Any, kwargs: Any) -> bool:
        """Whether a call that draws has the device as its place."""
        place = str(kwargs.get("device")).partition(":")[0]
        return place == self._device or any(map(self._on_device, args[:1]))

    def _packed(self, args: Any, kwargs: Any) -> Any:
        padded, lengths, *rest = args
        return (padded, lengths.cpu(), *rest), kwargs

    def _moved(self, func: Any, args: Any, kwargs: Any) -> Any:
        # what is changed in place stays where it is, and so does the change
        changed = _changes(func) and isinstance(args[0], Tensor)
        device = args[0].device.type if changed else self._device
        return to_device(device, (args, kwargs))

    def _on_host(self, args: Any, kwargs: Any) -> Any:
        args, kwargs = to_device("cpu", (args, kwargs))
        if kwargs.get("device") is not None:
            kwargs["device"] = "cpu"
        return args, kwargs

    def found(
        self, kind: str, func: Any, error: Exception, births: Sequence[Host | None] = ()
    ) -> None:
        """Note what was refused, and how what it was given came to be, if known."""
        why, remedy = MEANS[kind]
        what, site = _name(func).strip("_"), sites.here(3)
        what = "a sparse tensor" if kind == "sparse" else what
        for born in filter(None, births):
            self._note.mended.add(born)
            self._note.found(left_behind(born, site, _said(error)))
        if births and None not in births:
            return
        told = (one.why for one in self._note.seen.values())
        if not births and any(f"{_MEETS}{site}:" in why for why in told):
            return  # as in a run before this one
        why = f"{why}: {_said(error)}"
        self._note.found(Finding("breaks", kind, what, why, remedy, site))


def left_behind(born: Host, meets: str | None, said: str) -> Finding:
    """A tensor that stays on the host, and meets the device's at the line `meets`."""
    why, remedy = f"{_MEETS}{meets}: {said}", born.remedy or MEANS[MISMATCH][1]
    return Finding("breaks", MISMATCH, born.what, why, remedy, born.site)


@contextmanager
def known_births(device: str, note: Notebook, model: nn.Module) -> Iterator[None]:
    """Within, `born_of` knows the tensors of the host that `model` comes to."""
    tag_attributes(model.modules(), tag_host)
    mode = Hosted(device, note, captures=True)
    with _making("from_numpy", _AS_TENSOR, mode), mode:
        yield


def _making(name: str, remedy: str, mode: Hosted) -> AbstractContextManager[Any]:
    """Within, `born_of` knows what `torch.NAME` makes, which modes are not told."""
    given = getattr(torch, name)

    def make(*args: Any, **kwargs: Any) -> Any:
        made = given(*args, **kwargs)
        born = Host(f"torch.{name}", sites.here(2), remedy)
        for one in (*held(made), *hidden(made)):
            tag_host(one, born)
        return mode.mended(born, made)

    return patch.object(torch, name, make)


@contextmanager
def hosted(device: str, note: Notebook) -> Iterator[None]:
    """Within, `Hosted`, also in backward passes and for `numpy()`."""
    mode = Hosted(device, note)
    kind = type(torch.empty(0, device=device))
    given = kind.numpy

    def numpy(tensor: Any, *, force: bool = False) -> Any:
        if not force and not tensor.is_cpu:
            error = TypeError("can't convert a device's tensor to numpy")
            mode.found("refused", given, error)
        return given(tensor, force=True)

    seen: WeakSet[nn.Module] = WeakSet()

    def called(module: nn.Module, _: Any) -> None:
        if module not in seen:
            seen.update(module.modules())
            tag_attributes(module.modules(), tag_host)

    def registered(_: nn.Module, __: str, tensor: Tensor | None) -> None:
        before = None if tensor is None else born_of([tensor])
        if before is not None and not before.what.startswith("torch."):
            return  # an attribute of another module, which a loss is given
        if tensor is not None and (born := built_at(device)) is not None:
            tag_host(tensor, born)

    following: Any = _BaseDataLoaderIter.__next__

    def next_batch(batches: Any) -> Any:
        """What a loader gives is on the host, wherever its data set has it from."""
        batch = following(batches)
        for one in tensors_in(batch):
            PLACED.tag(one, _BATCH)
        return batch

    with ExitStack() as stack:
        stack.enter_context(register_module_forward_pre_hook(called))
        stack.enter_context(patch.object(_BaseDataLoaderIter, "__next__", next_batch))
        stack.enter_context(register_module_parameter_registration_hook(registered))
        stack.enter_context(register_module_buffer_registration_hook(registered))
        # an emulator's own, which torch does not show to modes
        stack.enter_context(patch.object(kind, "numpy", numpy))
        stack.enter_context(_making("load", f'torch.load(..., "{device}")', mode))
        stack.enter_context(_making("from_numpy", _AS_TENSOR, mode))
        stack.enter_context(mode)
        stack.enter_context(engine_in(lambda: mode))
        yield


def engine_in(
    mode: Callable[[], AbstractContextManager[Any]],
) -> AbstractContextManager[Any]:
    """Within, a backward pass is run in `mode()`.

    The modes in force are not, where `backward` is a call that they see.
    """
    engine = getattr(torch.autograd, _ENGINE)

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return engine(*args, **kwargs)

    return patch.object(torch.autograd, _ENGINE, run)


@contextmanager
def placed(within: AbstractContextManager[Any]) -> Iterator[None]:
    """`within`, and what a backward pass does has the line of its forward pass."""
    with warnings.catch_warnings(), within:
        warnings.filterwarnings("ignore", "Anomaly Detection")
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            yield


def tag_host(tensor: Tensor, host: Host) -> None:
    says_less = host.site is None or host.what.startswith(GLOBAL)
    if tensor.is_cpu and not (says_less and born_of([tensor]) is not None):
        PLACED.tag(tensor, host)


def born_of(tensors: Iterable[Tensor]) -> Host | None:
    """How the first of them that is known came to stay on the host, and where."""
    found = (PLACED.of(one) for one in tensors if one.is_cpu)
    return next((one for one in found if isinstance(one, Host) and one.site), None)


def _births(func: Any, args: Any, kwargs: Any) -> Sequence[Host | None]:
    """How the tensors came to stay on the host that a call may not have there; None of
    one of a batch, which is to be moved where it is used."""
    hosts = (one for one in tensors_in((args, kwargs)) if one.is_cpu and one.dim())
    found = [where for one in hosts if isinstance(where := PLACED.of(one), Host)]
    if _MAY_STAY.fullmatch(_name(func)):
        return [born for born in found if born.site][:1]
    return [
        born if born.site else None for born in found if born.site or born is _BATCH
    ]


def to_device(device: str, value: Any) -> Any:
    """`value` there, with dense tensors in place of sparse ones."""

    def move(tensor: Tensor) -> Tensor:
        is_sparse = tensor.layout in (torch.sparse_coo, torch.sparse_csr)
        return (tensor.to_dense() if is_sparse else tensor).to(device)

    return map_tensors(move, value)


def _changes(func: Any) -> bool:
    """Whether it changes its first argument, as `add_` and `+=` do."""
    return _CHANGES.fullmatch(_name(func)) is not None


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


def _said(error: Exception) -> str:
    text = joined(error)
    return text if len(text) <= 200 else f"{text[:197]}..."
