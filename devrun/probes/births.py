"""Where a tensor of the host was made, and what to write there."""

from __future__ import annotations

import ast
import linecache
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from functools import lru_cache, partial
from traceback import walk_stack
from typing import Any

from torch import Tensor, nn
from torch.utils import _device

from devrun.probes import sites
from devrun.probes.origins import HOST, Host, storage_of
from devrun.probes.sites import asking, defined, is_foreign, is_own
from devrun.probes.sources import assigned
from devrun.python38 import unparsed
from devrun.tensors import held, inside

_FACTORIES = frozenset(
    [
        *("tensor", "as_tensor", "asarray", "from_numpy", "scalar_tensor"),
        *("zeros", "ones", "empty", "full", "eye", "empty_strided"),
        *("arange", "range", "linspace", "logspace", "tril_indices", "triu_indices"),
        *("rand", "randn", "randint", "randperm", "normal"),
        *("bartlett_window", "blackman_window", "hamming_window", "hann_window"),
        "kaiser_window",
    ]
)
_FOLLOW = ("tensor", "as_tensor", "asarray", "normal")
"""Those whose result is where a tensor is that they are given."""
_IN_LISTS = "a buffer of each: self.register_buffer"
_MOVED = {"_parameters", "_buffers", "_modules"}
_AS_FUNCTION = "torch.tensor(..., device=x.device), of a tensor x beside it"
_AS_BUFFER = 'self.register_buffer("NAME", ..., persistent=False)'
_AS_PARAMETER = "self.NAME = nn.Parameter(...)"
GLOBAL = "the global "
_AS_GLOBAL = "NAME.to(...) where it is used, or a buffer of it"
_SAMPLE = "x.to(device) of what is read there: only the batches of a run are moved"
_AS_OWN = "an attribute of the model for what it keeps, or a buffer: those are moved"
_AS_MODULES = "nn.ModuleList, ModuleDict or ParameterList of it, which is moved"


def birth_of(
    name: str, args: Any, kwargs: Any, on_device: Callable[[Any], bool]
) -> Host | None:
    """Where the call `name` was written, if it makes a tensor on the host."""
    if name not in _FACTORIES or _device.CURRENT_DEVICE is not None:
        return None
    place = kwargs.get("device")
    elsewhere = place is not None and str(place) != HOST
    if elsewhere or kwargs.get("out") is not None:
        return None
    frame = asking()
    if frame is None:
        return None
    kept = frame.f_globals.values()  # not `x.device`, of a tensor that is there
    if place not in (None, HOST) and not any(one is place for one in kept):
        return None
    given = (*args[:2], *kwargs.values()) if name in _FOLLOW else ()
    if any(isinstance(arg, Tensor) for arg in given):
        return None
    beside = (key for key, one in frame.f_locals.items() if on_device(one))
    remedy = f"give torch.{name} the argument device=x.device of a tensor x there"
    if known := next(beside, None):
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        remedy = with_argument(line, name, f"{known}.device") or remedy
    return _sample() or Host(f"torch.{name}", sites.here(2), remedy)


def built_on_host() -> Host | None:
    """Where a tensor was made by its class, `torch.Tensor([1.0])`, on the host."""
    if _device.CURRENT_DEVICE is not None or asking() is None:
        return None
    return _sample() or Host("torch.Tensor", sites.here(2), _AS_FUNCTION)


def built_as(tensors: Iterable[Tensor]) -> Host | None:
    """What a class of torch's made, where a function that is running has it as one of
    its variables, as when it gives `tensors` to a model."""
    storages = {storage._cdata for one in tensors if (storage := storage_of(one))}
    for frame, line in walk_stack(asking()):
        file = frame.f_code.co_filename
        own = is_foreign(file) or is_own(file)
        made = _variables(None if own else f"{file}:{line}")
        for name in made.keys() & frame.f_locals.keys():
            value = frame.f_locals[name]
            storage = storage_of(value) if isinstance(value, Tensor) else None
            if storage is not None and storage._cdata in storages:
                site, called = made[name]
                kind = next(filter(None, map(_class_called, ast.walk(called))), None)
                return Host(kind, site, _AS_FUNCTION) if kind else None
    return None


@lru_cache(maxsize=None)
def _variables(site: str | None) -> dict[str, tuple[str, ast.expr]]:
    """Variables of its function that the statement at `site` reads -> `file:line` and
    value of what set them."""
    file, _, number = (site or "").rpartition(":")
    tree = ast.parse("".join(linecache.getlines(file)))
    line, nodes = int(number or 0), list(ast.walk(tree))
    functions = [one for one in nodes if isinstance(one, ast.FunctionDef)]
    around = [one for one in functions if one.lineno <= line <= (one.end_lineno or 0)]
    nodes = list(ast.walk(around[-1])) if around else []
    names = {
        one.id for one in nodes if isinstance(one, ast.Name) and one.lineno == line
    }
    sets = [one for one in nodes if isinstance(one, ast.Assign) and one.lineno <= line]
    made: dict[str, tuple[str, ast.expr]] = {}
    for one in sorted(sets, key=lambda one: one.lineno):
        for target in one.targets:
            made[getattr(target, "id", "")] = f"{file}:{one.lineno}", one.value
    return {name: row for name, row in made.items() if name in names}


def _class_called(node: ast.AST) -> str:
    """`torch.FloatTensor` where `node` is a call of it, or of another type."""
    if isinstance(node, ast.Call) and _name(node.func).endswith("Tensor"):
        return unparsed(node.func) or ""
    return ""


def _sample() -> Host | None:
    """Where a sample is read that is being made, if the user's code reads it: a data
    set makes its own on the host."""
    site = sites.asking_data_set()
    return Host("a sample", site, _SAMPLE) if site else None


def built_at(device: str) -> Host | None:
    """Where the module was made, of the user's or torch's, that is being built."""
    outer = None
    for frame, _ in walk_stack(sys._getframe(1)):
        if frame.f_code.co_name == "__init__":
            owner = frame.f_locals.get("self")
            outer = frame.f_back if isinstance(owner, nn.Module) else outer
    site = outer and sites.of_frame(outer)
    return Host("weights", site, f'.to("{device}") of the module') if site else None


@lru_cache(maxsize=None)
def with_argument(line: str, name: str, value: str) -> str | None:
    """`line` with `device=value` in its calls of `name`; None if it is not whole."""
    try:
        tree = ast.parse(line)
    except SyntaxError:
        return None
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    calls = [node for node in nodes if _name(node.func) == name]
    for call in calls:
        if name == "from_numpy":  # which has no such argument
            call.func = ast.parse("torch.as_tensor", mode="eval").body
        device = ast.parse(value, mode="eval").body
        others = [one for one in call.keywords if one.arg != "device"]
        call.keywords = [*others, ast.keyword("device", device)]
    return unparsed(tree) if calls else None


def _name(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def tag_attributes(owners: Iterable[Any], tag: Callable[[Tensor, Host], None]) -> None:
    """Tensors that nobody moves: in plain attributes, and of modules in lists.

    Args:
        owners: modules and hooks.
        tag: is given each of them.
    """
    owners = list(owners)
    known = {id(one) for one in owners}
    for one in keepers(owners):
        # an SDK may have made a class of its own of the user's
        kinds = type(one).__mro__
        kind = next(filter(defined, kinds), kinds[0])
        around = sys.modules.get(kind.__module__, types)
        if is_own(str(getattr(around, "__file__", ""))):
            continue  # a hook of devrun's, which keeps copies of what it is given
        own = attributes(one)
        is_module = isinstance(one, nn.Module)
        for holder, values, label, usual in (
            (kind, own, f"{kind.__name__}.", _IN_LISTS if is_module else _AS_GLOBAL),
            (kind, vars(kind), f"{kind.__name__}.", _AS_BUFFER),
            (around, _whole(vars(around)), GLOBAL, _AS_GLOBAL),
        ):
            for name, value in values.items():
                closed = _closed(value) if values is own else []
                if closed:
                    value = [part for part in closed if id(part) not in known]
                modules = hidden(value) if label == GLOBAL or values is own else []
                tensors = [*held(value), *modules]
                if name.startswith("__") or not tensors:
                    continue
                site, line = assigned(holder, name)
                remedy = _AS_MODULES if modules and values is own else usual
                if closed:
                    site, remedy = _enclosed_at(site), _AS_OWN
                if values is own and is_module and isinstance(value, Tensor):
                    kept = _AS_PARAMETER if value.requires_grad else _AS_BUFFER
                    remedy = kept.replace("...", _assigned(line))
                for tensor in tensors:
                    tag(tensor, Host(label + name, site, remedy.replace("NAME", name)))


def _closed(value: Any) -> list[Any]:
    """What a function of the user's, or a partial call, keeps beside its code."""
    if isinstance(value, partial):
        return [*value.args, *value.keywords.values()]
    cells = (getattr(value, "__closure__", None) or ()) if callable(value) else ()
    empty = types.CellType()  # as of a name that is set later
    return [one.cell_contents for one in cells if one != empty]


def _enclosed_at(site: str | None) -> str | None:
    """Where the one variable is made by a call that the statement at `site` encloses
    or hands on; `site` itself, where it is none or more than one."""
    variables = _variables(site).values()
    made = [at for at, value in variables if isinstance(value, ast.Call)]
    return made[0] if len(made) == 1 else site


def _whole(values: dict[str, Any]) -> dict[str, Any]:
    """Those that are no part of a module among them, as what a loop leaves is."""
    modules = [one for one in values.values() if isinstance(one, nn.Module)]
    inner = ((one, (*one.modules(), *one.parameters())) for one in modules)
    parts = {id(part) for one, each in inner for part in each if part is not one}
    return {name: one for name, one in values.items() if id(one) not in parts}


def attributes(owner: Any) -> dict[str, Any]:
    """Those of an object, but what a module knows to be its own."""
    return {name: value for name, value in vars(owner).items() if name not in _MOVED}


def keepers(owners: Iterable[Any]) -> Iterator[Any]:
    """`owners`, and objects of the user's own classes in their attributes and lists."""
    waiting, seen = list(owners), set()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        for value in getattr(one, "__dict__", {}).values():
            value = getattr(value, "transforms", value)  # of what calls them in turn
            parts = (value, *inside(value))  # a dataclass is taken apart
            waiting += [one for one in parts if _is_plain(one.__class__)]


@lru_cache(maxsize=None)
def _is_plain(kind: Any) -> bool:
    """Whether its objects are the user's own, which may change, and no modules, which
    are known."""
    return not issubclass(kind, (nn.Module, Tensor, Enum)) and defined(kind) is not None


def hidden(value: Any) -> list[Tensor]:
    """Of weights and modules, alone or in a list or dict: no module knows of them."""
    weights = [part for part in inside(value) if isinstance(part, nn.Parameter)]
    modules = [part for part in inside(value) if isinstance(part, nn.Module)]
    owners = (owner for each in modules for owner in each.modules())
    owned = (one for owner in owners for one in vars(owner).values())
    return [*weights, *(tensor for one in owned for tensor in held(one))]


def _assigned(line: str) -> str:
    """The value of the assignment `line`."""
    with suppress(SyntaxError, ValueError, AttributeError):
        (statement,) = ast.parse(line).body
        value: ast.expr = statement.value  # type: ignore[attr-defined]
        # of `self.a, self.b = x, y` there is more than one
        return "..." if isinstance(value, ast.Tuple) else unparsed(value) or "..."
    return "..."
