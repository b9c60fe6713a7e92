"""Which line is the user's, in a stack of calls."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.data import Dataset

from devrun.python38 import unparsed

_PACKAGE = Path(__file__).resolve().parents[1]
_TORCH = f"{Path(torch.__file__).resolve().parent}/"  # torchmetrics is another
_MODELS = str(_PACKAGE / "models")
_CHECK = f"{_MODELS}/finite.py"
"""Of weights, by devrun itself."""
_CALLERS = tuple(f"{_MODELS}/{name}.py" for name in ("calls", "step_module", "steps"))
_CHILD = str(_PACKAGE / "rehearsal" / "check" / "child.py")
"""Where the process of a rehearsal begins: what called it is no user's."""
_PYTHON = sysconfig.get_paths()["stdlib"]
_PACKAGES = tuple(f"{_PYTHON}/{name}" for name in ("site-packages", "dist-packages"))
EMULATORS = str(_PACKAGE / "emulators")
_TAPE = "/_tape.py"
"""The file of an emulator that runs again what it recorded."""
_CALL = re.compile(r'File "(.+?)", line (\d+)')
_LIBRARY = ("site-packages", "dist-packages")
_NUMPY = f"{sysconfig.get_paths()['purelib']}/numpy"


def is_own(file: str) -> bool:
    """Whether `file` is devrun's, its models apart: nothing a user would change."""
    of_model = file.startswith(_MODELS) and file != _CHECK
    return file.startswith(str(_PACKAGE)) and not of_model


def calls_model(file: str) -> bool:
    """Whether it is where devrun calls the model and its loss."""
    return file.startswith(_CALLERS)


def is_foreign(file: str) -> bool:
    """Whether it is torch's, an emulator's, Python's own, or no file at all."""
    of_python = file.startswith(_PYTHON) and not file.startswith(_PACKAGES)
    return of_python or file.startswith((_TORCH, EMULATORS, "<"))


def looks_on(file: str) -> bool:
    """Whether it is of a rehearsal, through whose modes and functions calls go."""
    within = file.startswith(str(_PACKAGE))
    return within and ("/probes/" in file or "/rehearsal/" in file)


def user_line(places: Iterable[tuple[str, int]]) -> str | None:
    """The innermost `file:line` of the user's own code, else of a library of models.

    Args:
        places: file and line of each call, the innermost first.
    """
    library = None
    for file, line in places:
        if file == _CHILD:
            break
        if is_foreign(file) or is_own(file) or calls_model(file):
            continue
        if file.startswith(_NUMPY):
            continue
        if not is_library(file):
            return f"{file}:{line}"
        library = library or f"{file}:{line}"
    return library


def here(depth: int = 1) -> str | None:
    """The user's line that led to the caller."""
    return of_frame(sys._getframe(depth))


def of_frame(frame: FrameType) -> str | None:
    """The user's line that `frame` is at, or that led to it."""
    return user_line(_places(traceback.walk_stack(frame)))


def asking() -> FrameType | None:
    """The innermost frame of the user's or of a model's; None where devrun asked, or
    where an emulator runs again what was asked before."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(EMULATORS) and file.endswith(_TAPE):
            return None
        if not (is_foreign(file) or looks_on(file) or _hands_on(frame)):
            return None if is_own(file) or calls_model(file) else frame
        frame = frame.f_back
    return None


def _hands_on(frame: FrameType) -> bool:
    """Whether it is of a package that knows no torch, and was given what it reads."""
    return is_library(frame.f_code.co_filename) and "torch" not in frame.f_globals


def calling() -> FrameType:
    """The innermost frame that is not of a rehearsal, nor of the modes it uses."""
    frame: FrameType = sys._getframe(1)
    while frame.f_back is not None and looks_on(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def in_model() -> bool:
    """Whether the model's code is running, called by devrun."""
    calls = _places(traceback.walk_stack(sys._getframe(1)))
    return any(calls_model(file) for file, _ in calls)


def in_data_set() -> bool:
    """Whether a method of a data set is running."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    return any(isinstance(one.f_locals.get("self"), Dataset) for one in frames)


def asking_data_set() -> str | None:
    """The user's line that asks for the sample that a data set makes; None: none."""
    asks = None
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        reads = frame.f_code.co_name == "__getitem__"
        if reads and isinstance(frame.f_locals.get("self"), Dataset):
            asks = frame.f_back
    return asks and of_frame(asks)


def line_asking() -> str | None:
    """The user's line that asked; None where devrun asked by itself."""
    return None if asking() is None else here(2)


def of_error(error: BaseException) -> str | None:
    """The user's line that raised `error`, or what caused it."""
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    places: list[tuple[str, int]] = []
    for each in reversed(chain):
        # torch.compile tells the lines of what it traces in its text alone
        told = [(file, int(line)) for file, line in _CALL.findall(str(each))]
        traced = list(_places(traceback.walk_tb(each.__traceback__)))
        places += [*reversed(told), *reversed(traced)]
    return user_line(places)


def defined(made: Any) -> str | None:
    """`file:line` of a class, function or method of the user's; None for any other."""
    try:
        made = inspect.unwrap(made)
        return _defined(getattr(made, "__func__", made))
    except (OSError, TypeError):
        return None


@functools.lru_cache(maxsize=None)
def _defined(made: Any) -> str | None:  # kept: the line of a class takes 50 ms to find
    file = str(inspect.getsourcefile(made))
    if user_line([(file, 0)]) is None:
        return None
    return user_line([(file, inspect.getsourcelines(made)[1])])


def maker_of(loader: Any, path: str = "") -> str | None:
    """Where the user's code returns batches: the collate function, or the data set.

    Args:
        path: of a part of them, such as `batch['image']`, whose line it is if it has
            one.
    """
    collate: Any = getattr(loader, "collate_fn", None)
    while hasattr(collate, "collate_fn"):  # devrun's own, around the user's
        collate = collate.collate_fn
    makers = [collate]
    while (loader := getattr(loader, "dataset", None)) is not None:  # or a Subset
        makers.append(getattr(type(loader), "__getitem__", None))
    return next(filter(None, (_returned(one, path) for one in makers)), None)


def _returned(made: Any, path: str) -> str | None:
    """`file:line` of the last `return` of a function of the user's, or of a part."""
    site = defined(made)
    if site is None:
        return None
    file, _, first = site.rpartition(":")
    tree = ast.parse(textwrap.dedent(inspect.getsource(made)))
    returns = [one for one in ast.walk(tree) if isinstance(one, ast.Return)]
    last = max(returns, key=lambda one: one.lineno, default=None)
    line = _line_of(last.value, path) or last.lineno if last else 1
    return f"{file}:{int(first) + line - 1}"


def _line_of(value: ast.expr | None, path: str) -> int | None:
    """That of what `path` begins with in a dict that is written out."""
    pairs = zip(value.keys, value.values) if isinstance(value, ast.Dict) else ()
    key = path.partition("[")[2].partition("]")[0]
    own = (one.lineno for name, one in pairs if name and unparsed(name) == key)
    return next(own, None)


def _places(calls: Iterable[tuple[FrameType, int]]) -> Iterator[tuple[str, int]]:
    return ((frame.f_code.co_filename, line) for frame, line in calls)


def is_library(site: str) -> bool:
    """Whether `file:line` is in an installed package."""
    return any(f"/{name}/" in site for name in _LIBRARY)
