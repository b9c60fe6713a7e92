"""`HardWired`: what code asks of CUDA by name, done on the device of the rehearsal."""

from __future__ import annotations

import functools
import linecache
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data._utils import pin_memory

from devrun.probes import sites
from devrun.probes.finding import Finding
from devrun.probes.notebook import Notebook
from devrun.probes.origins import DEVICE, HOST, ON_HOST, PLACED, Host
from devrun.probes.probe import Probe
from devrun.probes.sites import is_foreign, is_own
from devrun.probes.streams import Event, Idle, Stream
from devrun.torch_features import lacks

_CUDA, _NCCL = "cuda", "nccl"
_REMEDIES = {
    "device": "device=x.device, of a tensor x beside it",
    "default": "leave it out, and device=x.device where a tensor is made in forward",
    "module": "leave it out, or guard it: if torch.cuda.is_available()",
    "map_location": 'map_location="cpu"',
    "backend": "leave it out: devrun train --num-devices starts the processes",
    "DataParallel": "leave it out: devrun train --num-devices uses several devices",
    "pin_memory": "leave it out: loaders pin what goes to a device",
    "cuda": "x.to(y.device) of a tensor y beside it; a module, a buffer or a batch "
    "needs none: devrun moves them",
    "autocast": "leave it out, and optimizer_config: {precision: bf16} in the config",
    "GradScaler": "leave it out, and optimizer_config: {precision: fp16} in the config",
}
_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("synchronize", "set_device", "init", "ipc_collect")),
    **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated")),
    **dict.fromkeys(("set_rng_state", "set_per_process_memory_fraction")),
    **dict.fromkeys(("stream", "current_stream", "default_stream"), Stream),
    "set_stream": None,
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "memory_summary": "",
    **dict.fromkeys(("utilization", "temperature", "power_draw", "memory_usage"), 0),
    "get_device_properties": SimpleNamespace(
        name="", total_memory=0, major=0, minor=0, multi_processor_count=0
    ),
    "current_device": 0,
    "get_device_name": "",
    "get_device_capability": (0, 0),
    "mem_get_info": (0, 0),
}
"""Functions of torch.cuda that fail elsewhere -> what stands for their result."""
_THERE: dict[str, Any] = {
    "is_available": True,
    "is_bf16_supported": True,
    "device_count": 1,
    "memory_stats": lambda *_: Counter(),
}
"""Functions of torch.cuda that say elsewhere that there is none -> what they say."""
_ASKED: dict[str, Any] = {
    "is_cuda": True,
    "is_cpu": False,
    "device": torch.device(_CUDA),
}
"""Attributes that say where a tensor is -> what they say there."""
_SENT = (
    "in the data set",
    "a loader pins and copies what its data set gives, from the host alone",
    "leave it out: devrun moves the batches",
)
_COPIED = (
    "not registered",
    "on CUDA it is a copy of the weight, which is no nn.Parameter: none is trained",
    "nn.Parameter(x.to(device)), or leave it out: devrun moves the model",
)
_AMP = "torch.cuda.amp"
_LEFT_OUT = ("autocast", "GradScaler")
"""What torch does without, and warns, where there is no CUDA."""
_NAMES = ("module", "backend", "DataParallel", "pin_memory")
"""What names CUDA in the call itself."""
_LITERAL = re.compile("""["']cuda(:\\d+)?["']""")
_RANGES = ("mark", "range_push", "range_pop")
_TYPES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Byte", "Bool")


class HardWired(Probe):
    """Notes what breaks where there is no CUDA, and gets past it.

    On CUDA, as it is seen from a CPU, all of it works: nothing is noted, and CUDA is
    there for whoever asks. Nowhere may a data set put its samples on a device.
    """

    @contextmanager
    def throughout(self) -> Iterator[None]:
        here = self.request.device == _CUDA
        device = self.request.device
        tell = (lambda *_: None) if here else telling(self.note, device)
        # a sample that is on the device is told where it was put there
        unpinned = patch.object(pin_memory, "pin_memory", lambda data, *_: data)
        other = device != HOST
        placing = Substitutes(self.request.torch_device, tell, here, self._found, other)
        with unpinned, placing:
            yield

    def _found(self, what: str, kind: str, why: str, remedy: str) -> None:
        site = sites.here()
        if site not in {one.site for one in self.note.seen.values()}:
            self.note.found(Finding("breaks", kind, what, why, remedy, site))


def telling(
    note: Notebook, device: str, instead: Mapping[str, str] = _REMEDIES
) -> Callable[[str, str], None]:
    """What notes a call that names CUDA, at the line of the user's that names it.

    Args:
        instead: what to write, by what names CUDA; that of `device` for the rest.
    """

    def tell(what: str, name: str) -> None:
        remedy = instead.get(name) or instead["device"]
        remedy = remedy.replace("NAME", what.rpartition(".")[2])
        site = sites.line_asking()
        if site is None:  # a graph that is run again
            return
        site = site if name in _NAMES else _named_at(site, what)
        row = ("hard-wired cuda", what, f"there is no CUDA on {device}", remedy, site)
        note.found(Finding("differs" if name in _LEFT_OUT else "breaks", *row))

    return tell


def _named_at(site: str, what: str) -> str:
    """`site`, or the line of its file that gave a name to what is used there."""
    file, _, line = site.rpartition(":")
    text = linecache.getline(file, int(line))
    if _CUDA in text.lower() or what.startswith((_AMP, ".type(")):
        return site
    name = re.compile(re.escape(what)) if what.startswith("torch.") else _LITERAL
    lines = enumerate(linecache.getlines(file), 1)
    named = (n for n, text in lines if name.search(text))
    return f"{file}:{next(named, line)}"


class Substitutes(TorchFunctionMode):
    """What is asked of `cuda` is done on `device`; each call is told to `note`.

    Args:
        device: as torch names it, on which a rehearsal's tensors are.
        note: given the call, such as `.cuda()`, and what names CUDA in it.
        available: whether the user's code is told that CUDA is there.
        found: given a call that puts a sample or a new weight there, and what to say.
        any_kernel: of attention, where code asks for those that a CPU has none of.
    """

    def __init__(
        self,
        device: str,
        note: Callable[[str, str], None],
        available: bool,
        found: Callable[..., None] | None = None,
        any_kernel: bool = False,
    ) -> None:
        super().__init__()
        self._device, self._tell, self._available = device, note, available
        self._found, self._any_kernel = found, any_kernel
        self._stack = ExitStack()

    def __enter__(self) -> Any:
        # which look at CUDA's classes once: a stand-in would be taken for torch's own
        import torch._dynamo
        from torch._dynamo.variables import UserDefinedClassVariable

        getattr(UserDefinedClassVariable, "_in_graph_classes", set)()
        replace = self._replace
        for name, value in _NOTHING.items():
            replace(torch.cuda, name, self._silent(f"torch.cuda.{name}", value))
        for stand in (Stream, Event, device):  # which annotations name: classes
            name = stand.__name__
            begin = self._silent(f"torch.cuda.{name}", stand.__init__)
            replace(torch.cuda, name, type(name, (stand,), {"__init__": begin}))
        for name in _RANGES:
            replace(torch.cuda.nvtx, name, self._silent(f"nvtx.{name}", None))
        for name in _TYPES:
            kind = f"{name}Tensor"
            replace(torch.cuda, kind, self._typed(kind))
        replace(torch, "Generator", self._generator())
        load = self._given("map_location='cuda'", 1, "map_location", "cpu")
        replace(torch, "load", load)
        default = self._given("set_default_device('cuda')", 0, "device", self._device)
        replace(torch, "set_default_device", default)
        replace(torch, "set_default_tensor_type", self._default_type())
        begin = self._given("init_process_group('nccl')", 0, "backend", "gloo")
        replace(distributed, "init_process_group", begin)
        replace(nn.DataParallel, "__init__", self._alone(nn.DataParallel.__init__))
        for name, value in _THERE.items() if self._available else ():
            asked = self._silent(f"torch.cuda.{name}()", value, "device")
            replace(torch.cuda, name, asked)
        autocast, scaler = torch.amp.autocast_mode.autocast, torch.amp.GradScaler
        for kind_, name in ((autocast, "autocast"), (scaler, "GradScaler")):
            replace(kind_, "__init__", self._begun(kind_.__init__, name))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        asked = getattr(getattr(func, "__self__", None), "__name__", "")
        if name == "__get__" and asked in _ASKED and self._on_cuda(args[0]):
            return _ASKED[asked]
        if name == "get_device" and self._on_cuda(args[0]):
            return 0
        if name == _CUDA and getattr(func, "__objclass__", None) is not None:
            self._tell(".cuda()", "cuda")
            return self._placed(self._moved(args[0]), name)
        if name == "pin_memory":
            try:
                return func(*args, **kwargs)
            except RuntimeError:  # there is nothing to pin it for
                self._tell(".pin_memory()", name)
                return args[0]
        if name == "scaled_dot_product_attention" and self._any_kernel:
            return _by_any_kernel(func, args, kwargs)
        if self._is_there(device := kwargs.get("device")):
            if device is not _ASKED["device"]:  # of a tensor's own
                named = device if isinstance(device, int) else _CUDA
                self._tell(f"{name}(device={named!r})", name)
            kwargs = {**kwargs, "device": self._device}
        elif name == "type" and (plain := _plain_type(args[1:])):
            self._tell(f".type({plain[0]})", "cuda")
            return self._placed(self._moved(func(args[0], plain[1])), name)
        elif name == "to" and len(args) > 1 and self._is_there(args[1]):
            if args[1] is not _ASKED["device"]:
                self._tell(".to('cuda')", "cuda")
            args = (args[0], self._device, *args[2:])
        else:
            made = func(*args, **kwargs)
            if name == "to" and isinstance(made, Tensor) and not made.is_cpu:
                self._judged(made, name)
            return made
        return self._placed(func(*args, **kwargs), name)

    def _is_there(self, device: Any) -> bool:
        """Whether it is CUDA, also by a number, which is that of any accelerator."""
        number = isinstance(device, int) and not isinstance(device, bool)
        return _is_cuda(device) or (number and self._device == HOST)

    def _moved(self, tensor: Tensor) -> Tensor:
        if self._device == HOST:  # as it is; a capture would refuse to move it
            return tensor
        try:
            return tensor.to(self._device)
        except (ImportError, RuntimeError):  # before its SDK is imported
            return tensor

    def _placed(self, made: Any, name: str) -> Any:
        """`made`, which is on CUDA as far as the user's code knows."""
        if isinstance(made, Tensor):
            self._judged(made, name)
            if isinstance(PLACED.of(made), Host):  # there it is another tensor
                made = made.clone()
            PLACED.tag(made, DEVICE)
        return made

    def _judged(self, made: Tensor, name: str) -> None:
        if self._found is not None and sites.in_data_set():
            self._found(f".{name}()", *_SENT)
        elif self._found is not None and self._available and name in ("to", _CUDA):
            weight = made.is_leaf and made.requires_grad and torch.is_grad_enabled()
            if weight and sites.calling().f_code.co_name == "__init__":
                self._found(f".{name}()", *_COPIED)

    def _on_cuda(self, tensor: Tensor) -> bool:
        """Whether the user's code is to see `tensor` there: the model's, in an update.

        Of a tensor that nobody followed, it is there where the model is called.
        """
        if not self._available or not _of_the_user(sites.calling()):
            return False
        where = PLACED.of(tensor)
        return where is DEVICE or (where is None and sites.in_model())

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        if callable(value) and not isinstance(value, type):
            value.before = before
        self._stack.enter_context(patch.object(owner, name, value))

    def _silent(self, what: str, value: Any, name: str = "module") -> Any:
        """Gives the user's code `value`, or what that makes; what torch asks itself, it
        is told."""

        def call(*args: Any, **kwargs: Any) -> Any:
            before: Any = getattr(call, "before", None)
            if before is not None and not _of_the_user(sys._getframe(1)):
                return before(*args, **kwargs)
            self._tell(what, name)
            return value(*args, **kwargs) if callable(value) else value

        return call

    def _typed(self, kind: str) -> type:
        """`torch.FloatTensor` for `torch.cuda.FloatTensor`: a class."""
        plain = getattr(torch, kind)

        def make(_: type, *args: Any, **kwargs: Any) -> Any:
            sizes = (int, torch.Size)
            lists = (list, np.ndarray) if self._device == HOST else ()
            if args and all(isinstance(one, sizes) for one in args):
                # not what memory holds, which may not fit the device
                made = torch.zeros(*args, dtype=plain.dtype)
            elif copied := [one for one in args if isinstance(one, lists)]:
                there = _ASKED["device"]  # from the host, which modes are to see
                made = torch.tensor(copied[0], dtype=plain.dtype, device=there)
            else:
                made = plain(*args, **kwargs)
            self._tell(f"torch.cuda.{kind}", "device")
            return self._placed(self._moved(made), kind)

        return _Stand(kind, (), {"__new__": make, "plain": plain})

    def _generator(self) -> type:
        plain = torch.Generator

        def make(_: type, device: Any = "cpu") -> Any:
            if _is_cuda(device):
                self._tell("torch.Generator('cuda')", "device")
                device = torch.device(self._device)
            try:
                made = plain(device)
            except RuntimeError:  # an emulated device draws on the host
                made = plain("cpu")
            if isinstance(device, str):  # not that of a tensor, which may be elsewhere
                ON_HOST.add(made)
            return made

        return _Stand("Generator", (), {"__new__": make, "plain": plain})

    def _default_type(self) -> Callable[[Any], None]:
        """`torch.set_default_tensor_type`; without it new tensors are on the host."""
        plainly = torch.set_default_tensor_type

        def call(kind: Any) -> None:
            plain = _plain_type([kind])
            plainly(plain[1] if plain else kind)
            if plain:
                self._tell(f"set_default_tensor_type({plain[0]})", "default")
            if plain and self._available:
                torch.set_default_device(self._device)

        return call

    def _given(self, what: str, at: int, name: str, instead: str) -> Callable[..., Any]:
        """A call whose argument `name`, also at the place `at`, may not be CUDA's."""

        def call(*args: Any, **kwargs: Any) -> Any:
            given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
            place = at if at < len(args) else name
            if given.get(place) == _NCCL or _is_cuda(given.get(place)):
                self._tell(what, name)
                given[place] = instead
            args = tuple(given.pop(number) for number in range(len(args)))
            return call.before(*args, **given)  # type: ignore[attr-defined]

        return call

    def _alone(self, init: Any) -> Callable[..., None]:
        def begin(self_: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            with suppress(AttributeError, RuntimeError):  # of a look-alike
                init(self_, module, *args, **kwargs)
            if getattr(self_, "device_ids", True):  # else torch uses the host alone
                self._tell("nn.DataParallel", "DataParallel")
                nn.Module.__init__(self_)
                self_.module, self_.device_ids = module, []

        return begin

    def _begun(self, init: Any, name: str) -> Callable[..., None]:
        @functools.wraps(init)  # a compiler asks for its arguments
        def begin(self_: Any, *args: Any, **kwargs: Any) -> None:
            key = "device" if name == "GradScaler" else "device_type"
            given = args[0] if args else kwargs.get(key, _CUDA)
            if _is_cuda(given) and kwargs.get("enabled", True):
                of_cuda = type(self_).__module__.startswith(_AMP)
                caller = sys._getframe(1)
                code = caller.f_code
                # a compiler makes it again: in a graph, or at the head of a function
                again = caller.f_lineno == code.co_firstlineno
                if not again and code.co_name != "_enter_autocast":
                    what = f"{_AMP}.{name}" if of_cuda else f"{name}('cuda')"
                    self._tell(what, name)
                kwargs.pop(key, None)
                # elsewhere torch has neither; an older one scales on CUDA alone
                scales = self._device == HOST and not lacks("2.3")
                if not self._available or (name == "GradScaler" and not scales):
                    args, kwargs["enabled"] = args[:2], False
                args = (self._device, *args[1:])
            init(self_, *args, **kwargs)

        return begin


def _plain_type(given: Any) -> tuple[str, Any] | None:
    """Name and plain type of the type of CUDA's tensors that `.type` is given."""
    for kind in given:
        if isinstance(kind, str) and kind.startswith("torch.cuda."):
            return kind, kind.replace(".cuda", "")
        if plain := getattr(kind, "plain", None):
            return f"torch.cuda.{kind.__name__}", plain
    return None


def _by_any_kernel(attention: Any, args: Any, kwargs: Any) -> Any:
    """The result of `attention`, also where the user's code asks for kernels that CUDA
    alone has."""
    allowed = torch.backends.cuda.math_sdp_enabled()
    torch.backends.cuda.enable_math_sdp(True)
    try:
        return attention(*args, **kwargs)
    finally:
        torch.backends.cuda.enable_math_sdp(allowed)


class _Stand(type):
    """A class in place of `plain`, whose instances are its."""

    plain: Any

    def __instancecheck__(cls, one: Any) -> bool:
        return isinstance(one, cls.plain)


class device(Idle):  # noqa: N801 - torch's name
    """`torch.cuda.device`."""


def _is_cuda(value: Any) -> bool:
    named = isinstance(value, (str, torch.device))
    return named and str(value).partition(":")[0] == _CUDA


def _of_the_user(frame: Any) -> bool:
    file = frame.f_code.co_filename
    return not is_foreign(file) and not is_own(file)
