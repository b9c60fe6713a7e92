"""What a model is called with: bound to its forward, flattened, compared.

Tensors are found in tuples, lists, named tuples, dictionaries and types registered with
`registerCustomArgParser`. Everything else is a constant of the compiled graph.
"""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from poptorch._errors import Error
from poptorch._logging import logger
from poptorch._options_base import check

_ADVICE = (
    "Please re-wrap the model, or call destroy() on it to have it compiled again for "
    "the new inputs."
)


class ICustomArgParser:
    """How tensors are taken from a type and put back."""

    def yieldTensors(self, struct: Any) -> Iterable[torch.Tensor]:
        """Every tensor in `struct`, always in the same order."""
        raise NotImplementedError

    def reconstruct(
        self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]
    ) -> Any:
        """A structure like `original_structure` with these tensors."""
        raise NotImplementedError


_custom: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(
    arg_type: type, parser: ICustomArgParser | None = None
) -> None:
    """Accept `arg_type` as an input and an output; None: no longer."""
    if parser is None:
        _custom.pop(arg_type, None)
        return
    if not isinstance(parser, ICustomArgParser):
        raise Error("Custom parsers must be instances of ICustomArgParser")
    _custom[arg_type] = parser


def custom_parser(value: Any) -> ICustomArgParser | None:
    """The registered parser for a value, by its exact type or a base."""
    for kind in type(value).__mro__:
        if kind in _custom:
            return _custom[kind]
    return None


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a structure, in order; dictionaries in sorted key order."""
    parser = custom_parser(value)
    if parser is not None:
        yield from parser.yieldTensors(value)
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for key in _ordered(value):
            yield from tensors_in(value[key])


def rebuilt(value: Any, tensors: Iterator[Any]) -> Any:
    """The same structure with other tensors, taken in the order of `tensors_in`."""
    parser = custom_parser(value)
    if parser is not None:
        return parser.reconstruct(value, tensors)
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, (tuple, list)):
        items = [rebuilt(item, tensors) for item in value]
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return type(value)(items)
    if isinstance(value, dict):
        found = {key: rebuilt(value[key], tensors) for key in _ordered(value)}
        in_order = {key: found[key] for key in value}
        if type(value) is dict:
            return in_order
        twin = type(value).__new__(type(value))
        twin.__dict__.update(getattr(value, "__dict__", {}))
        dict.__init__(twin)
        for key, item in in_order.items():
            twin[key] = item
        return twin
    return value


def _ordered(value: dict[Any, Any]) -> list[Any]:
    return sorted(value, key=str)


class ParsedArgs:
    """Arguments of one call: positional ones and keywords, tensors in a list."""

    def __init__(self, args: list[Any], kwargs: dict[str, Any], names: list[str]):
        self.args = args
        self.kwargs = kwargs
        self.names = names

    def named(self) -> Iterator[tuple[str, Any]]:
        """Each argument with its name."""
        yield from zip(self.names, self.args)
        for key in _ordered(self.kwargs):
            yield key, self.kwargs[key]

    def tensors(self) -> list[torch.Tensor]:
        """All tensors in order."""
        return [t for _, value in self.named() for t in tensors_in(value)]

    def with_tensors(self, tensors: Iterable[Any]) -> ParsedArgs:
        """The same call with other tensors."""
        source = iter(tensors)
        args = [rebuilt(value, source) for value in self.args]
        found = {k: rebuilt(self.kwargs[k], source) for k in _ordered(self.kwargs)}
        return ParsedArgs(args, {k: found[k] for k in self.kwargs}, self.names)


class ArgsParser:
    """Binds a call to the signature of a model's forward."""

    def __init__(self, model: Any) -> None:
        function = model.forward if isinstance(model, nn.Module) else model.__call__
        parameters = list(inspect.signature(function).parameters.values())
        kinds = inspect.Parameter
        self._has_variadic_arguments = any(
            p.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD) for p in parameters
        )
        self._varnames = [p.name for p in parameters]
        self._defaults = [p.default for p in parameters]
        self._var_kinds = [p.kind for p in parameters]
        self._warned_not_contiguous_input = False

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ParsedArgs:
        """The bound call.

        Raises:
            AssertionError: Too many arguments, an unknown or a repeated keyword.
            Error: A mandatory parameter is missing.
        """
        kinds = inspect.Parameter
        # Subclasses made for older releases know names and defaults only.
        every = getattr(self, "_var_kinds", None)
        if every is None:
            every = [kinds.POSITIONAL_OR_KEYWORD] * len(self._varnames)
        plain = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        rows = list(zip(self._varnames, self._defaults, every))
        positional = [(n, d) for n, d, kind in rows if kind in plain]
        star = next((n for n, _, k in rows if k == kinds.VAR_POSITIONAL), None)
        stars = any(k == kinds.VAR_KEYWORD for _, _, k in rows)
        only = {n: d for n, d, k in rows if k == kinds.KEYWORD_ONLY}
        names = [n for n, _ in positional]
        check(
            star is not None or len(args) <= len(names),
            f"Too many arguments provided: expected {len(names)} but got {len(args)}",
        )
        for key in kwargs:
            check(
                stars or key in names or key in only,
                f"Invalid parameter: {key} is not one of {names + list(only)}",
            )
            check(
                key not in names[: len(args)],
                f"Parameter {key} was passed more than once",
            )
        return self._bound(args, kwargs, positional, only, star)

    def _bound(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        positional: list[tuple[str, Any]],
        only: dict[str, Any],
        star: str | None,
    ) -> ParsedArgs:
        missing = inspect.Parameter.empty
        rest = dict(kwargs)
        values, names = [], []
        for place, (name, default) in enumerate(positional):
            if place < len(args):
                value = args[place]
            elif name in rest:
                value = rest.pop(name)
            elif default is missing:
                raise Error(f"Mandatory parameter {name} missing")
            else:
                value = default
            values.append(value)
            names.append(name)
        for place in range(len(positional), len(args)):
            values.append(args[place])
            names.append(f"{star}[{place - len(positional)}]")
        for name, default in only.items():
            if name not in rest:
                if default is missing:
                    raise Error(f"Mandatory parameter {name} missing")
                rest[name] = default
        return ParsedArgs(values, rest, names)

    def prepared(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor argument as it can be sent: contiguous and without gradient."""
        if 0 in tensor.shape:
            raise Error(
                f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)})."
            )
        if tensor.is_inference():
            tensor = tensor.clone()  # made under inference_mode: no use in training
        if not tensor.is_contiguous():
            if not getattr(self, "_warned_not_contiguous_input", True):
                logger.warning(
                    "At least one input tensor is not contiguous: non-contiguous "
                    "tensors will be converted."
                )
                self._warned_not_contiguous_input = True
            return tensor.detach().contiguous()
        return tensor.detach()


def compare(expected: ParsedArgs, got: ParsedArgs) -> None:
    """Refuse a call that differs from the one that was compiled.

    Raises:
        Error: Saying what was expected and what was given.
    """
    if len(expected.args) != len(got.args):
        raise Error(
            f"Number of positional arguments mismatch: expected {len(expected.args)} "
            f"arguments but got {len(got.args)}. {_ADVICE}"
        )
    for name, old, new in zip(expected.names, expected.args, got.args):
        _compare(name, old, new)
    _compare_keys(expected.kwargs, got.kwargs)
    for key, old in expected.kwargs.items():
        _compare(key, old, got.kwargs[key])


def _compare_keys(old: dict[Any, Any], new: dict[Any, Any]) -> None:
    gone = sorted(str(k) for k in old.keys() - new.keys())
    more = sorted(str(k) for k in new.keys() - old.keys())
    texts = []
    if gone:
        texts.append(f"Missing arguments: {', '.join(gone)}.")
    if more:
        texts.append(f"Unexpected arguments: {', '.join(more)}.")
    if texts:
        raise Error(f"{' '.join(texts)} {_ADVICE}")


def _compare(name: str, old: Any, new: Any) -> None:
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        if old.dtype != new.dtype:
            _mismatch("Type", name, str(old.dtype), str(new.dtype))
        if old.shape != new.shape:
            _mismatch("Shape", name, _shape(old.shape), _shape(new.shape))
        return
    if type(old) is not type(new):
        _mismatch("Type", name, str(type(old)), str(type(new)))
    if custom_parser(old) is not None:
        pairs = zip(tensors_in(old), tensors_in(new))
        for index, (a, b) in enumerate(pairs):
            _compare(f"{name}[{index}]", a, b)
    elif isinstance(old, (tuple, list)):
        if len(old) != len(new):
            _mismatch("Length", name, str(len(old)), str(len(new)))
        for index, (a, b) in enumerate(zip(old, new)):
            _compare(f"{name}[{index}]", a, b)
    elif isinstance(old, dict):
        _compare_keys(old, new)
        for key in old:
            _compare(f"{name}[{key}]", old[key], new[key])
    elif old != new:
        _mismatch("Value", name, str(old), str(new))


def _shape(shape: Iterable[int]) -> str:
    return f"torch.Size({list(shape)})"


def _mismatch(what: str, name: str, old: str, new: str) -> None:
    raise Error(f"{what} mismatch for {name}: expected {old} but got {new}. {_ADVICE}")
