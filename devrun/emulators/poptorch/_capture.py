"""Runs a forward once, with tensors that have no values, and writes down what it did.

Every torch function that the forward calls is recorded as called, so that a replay does
exactly what CPU torch would have done. Values do not exist during the capture: asking
for one is the error that the device gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from poptorch import _limits, _rules
from poptorch import _torch_private as private
from poptorch._errors import Error
from poptorch._operators import Operators, check_operators
from poptorch._refusals import Detour, collecting, filled, reached, stack_here
from poptorch._refused import as_device_errors, forward_of, no_value, own_backward
from poptorch._tape import Node, Slot, Tape
from poptorch._torch_private import DisableTorchFunction, leaves_of, pytree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from poptorch._placement import Placement

_active: list[Recorder] = []

_DEVICE = torch.device("ipu:0")
_HOST = torch.device("cpu")
_PUT_THERE = frozenset(
    [
        *("arange", "empty", "full", "full_like", "linspace", "logspace", "normal"),
        *("ones", "rand", "randint", "randn", "randperm", "range", "tensor"),
        *("zeros", "zeros_like"),
    ]
)
"""Functions that make a tensor on the IPU without being asked: what
`_SetDefaultDeviceType` of PopTorch 3.4 wraps. All others make it on the host."""


def current() -> Recorder | None:
    """The capture in progress, if any."""
    return _active[-1] if _active else None


class Recorder(TorchFunctionMode):
    """Tensors of the graph are known by identity: each has a slot."""

    def __init__(self, placement: Placement, training: bool) -> None:
        super().__init__()
        self.placement = placement
        self.training = training
        self.fake_mode = private.FakeTensorMode()
        self.tape = Tape()
        self.losses: list[int] = []
        self.constants: dict[int, torch.Tensor] = {}
        self.kinds: dict[int, str] = {}
        self.count = 0
        self._slots: dict[int, int] = {}
        self._alive: list[Any] = []
        self._sources: dict[int, torch.Tensor] = {}
        self._originals: dict[int, torch.Tensor] = {}
        self._real: dict[int, torch.Tensor] = {}
        self._folded: dict[int, torch.Tensor] = {}
        """What is computed of no input, by id."""
        self._sizes: torch.Tensor | None = None
        """Of packed sequences, whose packing was refused and got past."""
        self.detour = Detour(self.tape, self._real, self.kinds, training)

    # -- slots -------------------------------------------------------------------------

    def _slot(self, tensor: torch.Tensor) -> int:
        slot = self._slots.get(id(tensor))
        if slot is None:
            slot = self.count
            self.count += 1
            self._slots[id(tensor)] = slot
            self._alive.append(tensor)
        return slot

    def add_input(self, tensor: torch.Tensor, kind: str = "input") -> torch.Tensor:
        """A tensor of the graph with the shape and type of `tensor`."""
        stand_in = self.fake_mode.from_tensor(tensor.detach(), static_shapes=True)
        slot = self._slot(stand_in)
        self.kinds[slot], self._real[slot] = kind, tensor.detach()
        _show_as(_DEVICE, [stand_in])
        return stand_in

    def add_source(self, tensor: torch.Tensor, grouped: bool = False) -> int:
        """Make a parameter or buffer of the model a tensor of the graph.

        One that is `grouped` has a value for each group of replicas.
        """
        with private.DisableTorchFunctionSubclass():
            plain = tensor.detach()[0] if grouped else tensor.detach()
            stand_in = self.fake_mode.from_tensor(plain, static_shapes=True)
            stand_in.requires_grad_(tensor.requires_grad)
            _show_as(_DEVICE, [stand_in])
        self._sources[id(tensor)] = stand_in
        self._originals[id(stand_in)] = tensor
        self._alive.append(tensor)
        slot = self._slot(stand_in)
        self.kinds[slot], self._real[slot] = "variable", plain
        return slot

    def slot_of(self, tensor: torch.Tensor) -> int | None:
        """The slot of a tensor of the graph; None for any other."""
        return self._slots.get(id(self._sources.get(id(tensor), tensor)))

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """What stands for a parameter during the capture."""
        return self._sources.get(id(tensor), tensor)

    # -- capture -----------------------------------------------------------------------

    def __enter__(self) -> Recorder:
        _active.append(self)
        # its C++ half would end the process at a tensor without values
        self._refusing = ExitStack()

        def function(kind: Any, *args: Any, **kwargs: Any) -> Any:
            return self._function(kind, *args, **kwargs)

        for owner, name, call in (
            # a bound method would be given no class by Python 3.9
            (torch.autograd.Function, "apply", classmethod(function)),
            (torch.autograd, "grad", self._gradient),
        ):
            replaced = private.replaced(owner, name, call)
            self._refusing.enter_context(replaced)
        self._refusing.enter_context(private.read_whole())
        super().__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)
        self._refusing.__exit__(*details)
        _active.remove(self)
        error = details[1]
        if isinstance(error, TypeError) and "FakeTensor" in str(error):
            # torch names the arguments that it refuses; these are tensors to the user
            error.args = (str(error).replace("FakeTensor", "Tensor"),)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Carry out and record one torch function."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name in _rules.SETTINGS:
            return func(*args, **kwargs)
        attribute = _attribute(func, name)
        if attribute == "device" and self.slot_of(args[0]) is not None:
            return _DEVICE  # a parameter; stand-ins know it themselves
        if name in ("__getitem__", "__setitem__"):
            args = (args[0], self._host_bounds(args[1]), *args[2:])
        leaves, spec = pytree.tree_flatten((args, kwargs))
        known = [self._is_known(leaf) or self._is_of_another(leaf) for leaf in leaves]
        moved = any(_is_ipu(leaf) for leaf in leaves) or (
            name in ("to", "type_as") and any(map(self._is_on_device, leaves[1:]))
        )
        leaves = [_without_ipu(leaf) for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if tensors and not any(known) and not moved:
            plain_args, plain_kwargs = pytree.tree_unflatten(leaves, spec)
            return func(*plain_args, **plain_kwargs)  # a computation on the host
        if not tensors and not moved and _stays(name, kwargs):
            return func(*args, **kwargs)
        stood_in = [self._enter_graph(leaf, name, moved) for leaf in leaves]
        in_args, in_kwargs = pytree.tree_unflatten(stood_in, spec)
        reads = attribute is None and any(known) and _rules.reads(name, in_args)
        if attribute in _rules.FACTS or (name in _rules.UNRECORDED and not reads):
            with self.fake_mode, _on_host(stood_in):
                return self._restored(func(*in_args, **in_kwargs))
        if reads and not any(map(self._is_on_device, leaves)):
            return func(*args, **kwargs)  # the host's own has its value
        if reads:
            return self._read(func, name, in_args, in_kwargs)
        if not moved and _limits.is_to_host(name, in_args, in_kwargs):
            name = "cpu"
        try:
            _limits.check(name, in_args, in_kwargs)
        except Error as error:
            self.detour.refuse(error, name, self.tape)
            if name in _limits.UNSUPPORTED:
                return None
        function = _rules.adapted(func, name, in_args, in_kwargs)
        # torch's own stand-in for it wants values, though its result is one number.
        example = in_args[0].sum if name == "ctc_loss" else None
        made = self.record(function, name, in_args, in_kwargs, example=example)
        for one in leaves_of(made) if moved else ():
            if isinstance(one, private.FakeTensor):
                one.constant = None  # its value is on the device
        return made

    def record(
        self,
        function: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        bodies: tuple[Tape, ...] = (),
        example: Callable[[], Any] | None = None,
    ) -> Any:
        """Carry out a function on stand-ins and append it to the tape."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        seen = Operators(self._folded)
        try:
            with self.fake_mode, as_device_errors(name), _on_host(leaves), seen:
                result = example() if example else function(*args, **kwargs)
            _rules.check_results(name, leaves_of(result))
            check_operators(name, seen.names)
            if {"triu", "triu_"} & seen.names.keys():
                raise _limits.no_constant(name)
            if error := _rules.check_numbers(name, (args, kwargs), result):
                self.detour.note(error, tape=self.tape)
            elif _rules.is_half(result):
                given = map(self._captured, leaves)
                if large := self.detour.overflow(function, given, spec, self.tape):
                    self.detour.note(_rules.beyond(name, large), tape=self.tape)
        except Error as error:
            if not any(map(self._is_refused, leaves)):
                self.detour.refuse(error, name, self.tape)
            captured = map(self._captured, leaves)
            function, result = self.detour.sized(function, name, captured, spec)
            if name == private.PACKS:
                self._sizes = result[1]
            with self.fake_mode:
                result = reached(result, leaves)
        out = leaves_of(result)
        _show_as(_DEVICE, out)
        produced = [
            (i, v) for i, v in enumerate(out) if isinstance(v, private.FakeTensor)
        ]
        if not produced and not _is_inplace(name):
            return result
        block, ipu = self.placement.note()
        writes = [(i, self._slot(v)) for i, v in produced]
        node = Node(
            function,
            [self._captured(leaf) for leaf in leaves],
            spec,
            writes,
            grad=torch.is_grad_enabled(),
            name=name,
            block=block,
            ipu=ipu,
            bytes=sum(v.numel() * v.element_size() for _, v in produced),
            bodies=bodies,
            stack=() if collecting() is None else stack_here(),
        )
        self.tape.nodes.append(node)
        if name in _rules.LOSSES and produced:
            self.losses.append(writes[0][1])
            self.detour.place(writes[0][1])
        return self._restored(result)

    def body(
        self, function: Callable[..., Any], inputs: Sequence[torch.Tensor]
    ) -> tuple[Tape, list[torch.Tensor]]:
        """Capture a function of its own as a tape; returns it and its outputs."""
        outer, self.tape = self.tape, Tape()
        try:
            stand_ins = [self.stand_in(t) for t in inputs]
            with DisableTorchFunction(), self.fake_mode, _on_host(stand_ins):
                given = [t.detach().clone() for t in stand_ins]
            _show_as(_DEVICE, given)
            self.tape.given = [self._slot(t) for t in given]
            result = function(*given)
            outputs = list(result) if isinstance(result, (tuple, list)) else [result]
            with DisableTorchFunction():
                missing = [o for o in outputs if self.slot_of(o) is None]
            if missing:
                raise Error("The body must return tensors that are on the IPU")
            self.tape.returned = [self._slot(self.stand_in(o)) for o in outputs]
            return self.tape, outputs
        finally:
            self.tape = outer

    def _gradient(self, outputs: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        """A gradient that forward asks for; got past, of zeros."""
        try:
            _limits.check("backward", (), {})
        except Error as error:
            self.detour.refuse(error, "backward", self.tape)
        listed = inputs if isinstance(inputs, torch.Tensor) else list(inputs)
        return tuple(torch.zeros_like(leaf) for leaf in leaves_of(listed))

    def _function(self, kind: type, *args: Any, **kwargs: Any) -> Any:
        """A function with a backward of its own; got past, that of its operations."""
        self.detour.refuse(own_backward(kind), kind.__qualname__, self.tape)
        return forward_of(kind, args, kwargs)

    # -- helpers -----------------------------------------------------------------------

    def _is_refused(self, leaf: Any) -> bool:
        """Whether it is a result whose type was refused, and all that comes of it."""
        known = isinstance(leaf, torch.Tensor) and leaf.dtype.is_complex
        return known and not self.kinds.get(self._slot(leaf))

    def _host_bounds(self, index: Any) -> Any:
        """Bounds of slices that are tensors, as numbers: the host's have a value."""
        if isinstance(index, tuple):
            return tuple(self._host_bounds(i) for i in index)
        if not isinstance(index, slice):
            return index

        def number(bound: Any) -> Any:
            if not isinstance(bound, torch.Tensor):
                return bound
            if self._is_known(bound):
                index, given = torch.Tensor.__index__, (self.stand_in(bound),)
                return self._read(index, "__index__", given, {})
            with DisableTorchFunction():
                return int(bound)

        return slice(number(index.start), number(index.stop), number(index.step))

    def _is_known(self, leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and self.slot_of(leaf) is not None

    def _is_on_device(self, leaf: Any) -> bool:
        """Not a tensor of the host, also where its value is a constant of the graph."""
        copied = not isinstance(leaf, private.FakeTensor)
        return self._is_known(leaf) and not (
            copied and self.slot_of(leaf) in self.constants
        )

    def _is_of_another(self, leaf: Any) -> bool:
        """Whether it stands for a tensor of another capture, which has no value."""
        stands_in = isinstance(leaf, private.FakeTensor)
        return stands_in and leaf.fake_mode is not self.fake_mode

    def _enter_graph(self, leaf: Any, name: str, moved: bool) -> Any:
        """The stand-in of a leaf; a host scalar, or what is moved, is a constant."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        found = self._sources.get(id(leaf), leaf)
        if id(found) in self._slots:
            return found
        if leaf.dim() and not moved and leaf is not self._sizes:
            error = Error(
                "Expected an IPU tensor but got tensor(device=cpu, shape="
                f"{list(leaf.shape)}, dtype={_type_name(leaf)}) in {name}. Constant "
                "tensors should be moved explicitly to the IPU, "
                'via cst.to("ipu"), or be registered as a buffer.'
            )
            self.detour.refuse(error, name, self.tape, leaf)
        with DisableTorchFunction():
            valueless = isinstance(leaf, private.FakeTensor)
            constant = filled(leaf) if valueless else leaf.detach().clone()
            stand_in = self.fake_mode.from_tensor(constant, static_shapes=True)
        slot = self._slot(stand_in)
        self.constants[slot] = self._real[slot] = constant
        if leaf is not self._sizes:  # which stay on the host
            self._sources[id(leaf)] = stand_in
        self._alive.append(leaf)
        return stand_in

    def _captured(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return Slot(self._slots[id(leaf)])
        return leaf

    def _restored(self, result: Any) -> Any:
        """In-place functions on a parameter return the parameter, not its stand-in."""
        if isinstance(result, torch.Tensor):
            return self._originals.get(id(result), result)
        return result

    def _read(
        self,
        func: Callable[..., Any],
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A value is asked for: constants have one, computed tensors do not."""
        try:
            with self.fake_mode, as_device_errors(name), _on_host(args):
                try:
                    return func(*args, **kwargs)
                except (RuntimeError, TypeError) as error:
                    raise no_value(name) from error
        except Error as error:
            self.detour.refuse(error, name, self.tape)
            leaves, spec = pytree.tree_flatten((args, kwargs))
            return self.detour.value(func, name, map(self._captured, leaves), spec)


def _show_as(device: torch.device, values: Sequence[Any]) -> None:
    """What `tensor.device` says of stand-ins."""
    for value in values:
        if isinstance(value, private.FakeTensor):
            value.fake_device = device
            # what a view is of, which a change in place of the view reads too
            if isinstance(base := private.viewed(value), private.FakeTensor):
                base.fake_device = device


@contextmanager
def _on_host(values: Sequence[Any]) -> Iterator[None]:
    """Stand-ins are CPU tensors while torch works on them."""
    _show_as(_HOST, values)
    try:
        yield
    finally:
        _show_as(_DEVICE, values)


def _type_name(tensor: torch.Tensor) -> str:
    return tensor.type().rpartition(".")[2].replace("Tensor", "")


def _attribute(func: Callable[..., Any], name: str) -> str | None:
    """`shape` for the function behind `tensor.shape`."""
    if name != "__get__":
        return None
    return str(getattr(getattr(func, "__self__", None), "__name__", ""))


def _is_inplace(name: str) -> bool:
    return name in ("__setitem__", "__set__") or (
        name.endswith("_") and not name.endswith("__")
    )


def _is_ipu(leaf: Any) -> bool:
    if isinstance(leaf, torch.device):
        return leaf.type == "ipu"
    return isinstance(leaf, str) and (leaf == "ipu" or leaf.startswith("ipu:"))


def _stays(name: str, kwargs: Any) -> bool:
    """Whether what a function makes of no tensor is on the host."""
    device = kwargs.get("device")
    if device is None:
        return name not in _PUT_THERE
    return torch.device(device).type == _HOST.type


def _without_ipu(leaf: Any) -> Any:
    return torch.device("cpu") if _is_ipu(leaf) else leaf
