"""Where in the user's code something happened."""

from __future__ import annotations

import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Tuple

import torch

from habana_frameworks._emulation.torch_private import forward_stack, generated_lines

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_AUTOGRAD = f"{_TORCH}autograd{os.sep}"
"""What runs a backward pass: no line of the user's between it and an operator."""
_PYTHON = sysconfig.get_paths()["stdlib"] + os.sep
_PACKAGED = {"site-packages", "dist-packages"}
_PACKAGES = tuple(_PYTHON + name + os.sep for name in _PACKAGED)
_MODES = ("__torch_dispatch__", "__torch_function__")
_LINE = re.compile(r'File "([^"]+)", line (\d+)(?:, in (\S+))?')
_inside: dict[str, bool] = {}
Place = Tuple[str, int]
_traced: dict[str, Mapping[int, Place]] = {}
"""The user's place of each line of the code that torch generated of a graph."""


@dataclass(frozen=True)
class Site:
    """A line of the user's code; line 0 where none is on the stack."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


NOWHERE = Site("<autograd>", 0)
"""The backward pass runs in a thread of torch's own, below no user code."""


def _is_inside(filename: str) -> bool:
    """Whether it is torch's, the emulator's, Python's own, or no file at all."""
    found = _inside.get(filename)
    if found is None:
        own = filename.startswith(_PYTHON) and not filename.startswith(_PACKAGES)
        found = own or filename.startswith((_OURS, _TORCH, "<"))
        _inside[filename] = found
    return found


def _hands_on(frame: FrameType) -> bool:
    """Whether it is of a package that knows no torch, and was given what it reads."""
    names = frame.f_code.co_filename.split(os.sep)
    return not _PACKAGED.isdisjoint(names) and "torch" not in frame.f_globals


def user_place(forward: bool = False) -> Place | None:
    """The user's file and line, the innermost one.

    `forward`: of a backward pass, the line of the forward pass, where it is kept.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        # a mode hands on what some line below it asks for
        inside = _is_inside(name) or _hands_on(frame)
        if not inside and frame.f_code.co_name not in _MODES:
            return name, _line_of(frame)
        place = _traced.get(name, {}).get(frame.f_lineno)
        if place is None and forward and name.startswith(_AUTOGRAD):
            place = _place_of(forward_stack())
        if place is not None:
            return place
        frame = frame.f_back
    return None


def _line_of(frame: FrameType) -> int:
    """The line that runs; in code that torch wrote around a graph, the next it knows.

    There, what prepares a call is given the line of the whole function, and Python
    may do the call in what prepares it.
    """
    code, line = frame.f_code, frame.f_lineno
    if line == code.co_firstlineno and any(
        name.startswith(("__compiled_fn", "__resume_at")) for name in code.co_names
    ):
        for start, _, after in code.co_lines():
            if start > frame.f_lasti and after not in (None, line):
                return after
    return line


def know_graph(graph_module: Any) -> None:
    """Find the user's lines while the graph runs that torch captured of them.

    `torch.fx` keeps the lines of the generated code for its own error messages.
    """
    for part in graph_module.modules():
        if not isinstance(part, torch.fx.GraphModule):
            continue
        first, lines = generated_lines(part)
        nodes = [_place_of(node.stack_trace or "") for node in part.graph.nodes]
        _traced[inspect.unwrap(part.forward).__code__.co_filename] = {
            first + line: place
            for line, number in lines.items()
            if number is not None and (place := nodes[number]) is not None
        }


def _place_of(stack: str) -> Place | None:
    """The innermost user's line of a stack in text, the outermost call first."""
    for file, line, name in reversed(_LINE.findall(stack)):
        if not _is_inside(file) and name not in _MODES:
            return file, int(line)
        if (place := _traced.get(file, {}).get(int(line))) is not None:
            return place
    return None


def user_site(forward: bool = False) -> Site:
    """The same as a site."""
    place = user_place(forward)
    return NOWHERE if place is None else Site(*place)
