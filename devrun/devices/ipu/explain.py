"""Refusals of PopTorch, PopART and Poplar, as one line for the user."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from typing import Any

from torch import nn

from devrun.blame import is_users
from devrun.devices.ipu.split import split_of
from devrun.errors import (
    ConfigError,
    DeviceMemoryError,
    DeviceUnavailableError,
    DevrunError,
    UnsupportedFeatureError,
)
from devrun.models.step_module import StepModule
from devrun.text import joined

TILES = 1472
"""Of one Mk2 IPU."""
_TRY = (
    "try a smaller micro-batch, half precision, more recomputation (train_ckpt_nodes), "
    "a smaller availableMemoryProportion, or this block divided over more IPUs"
)


def explain(error: BaseException, model: nn.Module, sdk: Any) -> DevrunError | None:
    """One line for the user, or None when the error needs no explanation.

    Args:
        model: the user's module, with the blocks of `apply_split` on it, or the
            `StepModule` around it.
    """
    if isinstance(error, DevrunError) or not isinstance(
        error, (sdk.Error, AssertionError, RuntimeError)
    ):
        return None
    user = model.module if isinstance(model, StepModule) else model
    text = joined(error)
    for pattern, told in _KNOWN:
        if match := re.search(pattern, text):
            return told(match, user)
    if not isinstance(error, sdk.Error):
        return None
    operation, place = _operation(text), _place(error, user)
    if place is None and operation is None:
        return None
    at = f" at {place}" if place else ""
    named = f"the operation {operation}" if operation else "an operation"
    return UnsupportedFeatureError(
        f"{_name(user)} cannot be compiled for the IPU: {named}{at}; "
        f"PopTorch says: {first_sentences(text)}"
    )


def _too_few(match: re.Match[str], model: nn.Module) -> DevrunError:
    wanted, here = match["wanted"], match.groupdict().get("here")
    size = f"the machine has {here}" if here else "the machine does not have them free"
    return DeviceUnavailableError(
        f"the run needs {wanted} IPUs (replicas x IPUs of one replica), but {size}: "
        "set fewer replicas (--ipu-replicas), split the model over fewer IPUs, or use "
        "a larger machine"
    )


def _too_many(match: re.Match[str], model: nn.Module) -> DevrunError:
    return ConfigError(
        f"the run asks for {match['wanted']} IPUs, and one process can have 64: set "
        "fewer replicas"
    )


def _no_power_of_two(match: re.Match[str], model: nn.Module) -> DevrunError:
    return ConfigError(
        f"the run uses {match['wanted']} IPUs, but they are reserved in powers of two: "
        f"use {match['rounded']}, or set autoRoundNumIPUs: true to leave some idle"
    )


def _out_of_memory(match: re.Match[str], model: nn.Module) -> DevrunError:
    if ipu := match["ipu"]:
        number = int(ipu)
        used = f"about {int(match['total']) / 2**20:.0f} MiB of an allowed "
        used += f"{int(match['limit']) / 2**20:.0f}, by the emulator's estimate"
    else:
        number = int(match["tile"]) // TILES
        used = f"tile {match['tile']} needs {match['used']} of its {match['has']} bytes"
    return DeviceMemoryError(
        f"out of memory on IPU {number}{_block(model, number)}: {used}; {_TRY}"
    )


def _block(model: nn.Module, ipu: int) -> str:
    """`, which runs from ... to before ...`, as far as the split says it."""
    placed = split_of(model)
    if not placed:
        return ", which holds the whole model"
    begins = [name for name, place in placed if place == ipu]
    later = [name for name, place in placed if place > ipu]
    first = repr(begins[0]) if begins else "the beginning"
    end = f"to before {later[0]!r}" if later else "to the end"
    return f", which runs from {first} {end}"


def _accumulation(match: re.Match[str], model: nn.Module) -> DevrunError:
    needed = int(match["needed"])
    stages = (needed + 1) // 2
    got = match.groupdict().get("got")
    given = f"gradientAccumulation is {got}" if got else "gradientAccumulation is less"
    return ConfigError(
        f"a pipeline of {stages} stages needs at least {needed} (2 x {stages} - 1) "
        f"accumulated micro-batches, but {given}: raise cumulative_iters (or "
        f"Training.gradientAccumulation) to {needed} or more, "
        "split over fewer IPUs, or use ShardedExecution"
    )


def _device_iterations(match: re.Match[str], model: nn.Module) -> DevrunError:
    return ConfigError(
        f"a pipeline of {match['needed']} stages needs at least {match['needed']} "
        "deviceIterations in evaluation: raise it there, or use ShardedExecution"
    )


def _two_losses(match: re.Match[str], model: nn.Module) -> DevrunError:
    return ConfigError(
        f"{_name(model)} computes a loss that is no part of the one it returns, and "
        "PopTorch trains on one: add it, times 0 where it is only logged"
    )


def _name(model: nn.Module) -> str:
    """The user's class; a wrapped model's is PopTorch's own subclass of it."""
    return type(model).__name__.removeprefix("Poptorch")


def _operation(text: str) -> str | None:
    """The operation that a message is about, as PopTorch spells it."""
    for pattern in (
        r"Unsupported ops found in compiled model: \[([\w:.]+)",
        r"(aten::\w+)",
        r"\) in (\w+)\. Constant",
        r"^(\w+)(?:: | is not supported on the IPU)",
    ):
        if match := re.search(pattern, text):
            return match[1]
    return None


def first_sentences(text: str) -> str:
    """The message without PopTorch's own source lines and advice to its vendor."""
    text = re.sub(r"^In \S+:\d+: '\w+': ", "", text)
    text = re.split(r" Not all operations are| If you believe| Error raised in:", text)[
        0
    ]
    return text if len(text) <= 240 else f"{text[:237]}..."


def _place(error: BaseException, model: nn.Module) -> str | None:
    """`file:line` of the user's code that was running when the error was raised.

    That is in a file of the model's own classes, or in any other that is neither
    devrun's nor an installed package's; None when no forward pass was going on.
    """
    frames = traceback.extract_tb(error.__traceback__)
    begins = [i for i, frame in enumerate(frames) if frame.name == "forward"]
    own = files_of(model)
    for frame in reversed(frames[begins[0] :] if begins else []):
        if frame.filename in own or is_users(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return None


def files_of(model: nn.Module) -> set[str]:
    """The source files of the model's own classes."""
    files = set()
    for kind in {base for m in model.modules() for base in type(m).__mro__}:
        if issubclass(kind, nn.Module) and not kind.__module__.startswith("torch."):
            try:
                files.add(inspect.getsourcefile(kind) or "")
            except (TypeError, OSError):
                continue  # made without a file, as in a console
    return files - {""}


_Teller = Callable[[re.Match[str], nn.Module], DevrunError]

_KNOWN: tuple[tuple[str, _Teller], ...] = (
    (
        r"Failed to acquire (?P<wanted>\d+) IPU(?:.*the machine has (?P<here>\d+))?",
        _too_few,
    ),
    (r"Too many IPUs requested \((?P<wanted>\d+)\)", _too_many),
    (
        r"specifies the use of (?P<wanted>\d+) IPUs.*minimum of (?P<rounded>\d+)",
        _no_power_of_two,
    ),
    (
        r"Out of memory on (?:IPU (?P<ipu>\d+) .*?: (?P<total>\d+) bytes .* limit "
        r"(?P<limit>\d+)|tile (?P<tile>\d+): (?P<used>\d+) bytes used but tiles only "
        r"have (?P<has>\d+))",
        _out_of_memory,
    ),
    (
        r"gradientAccumulation must be greater than or equal to the number of pipeline "
        r"stages \((?P<needed>\d+)\)(?:.*gradientAccumulation is (?P<got>\d+))?",
        _accumulation,
    ),
    (
        r"deviceIterations must be greater than or equal to the number of pipeline "
        r"stages \((?P<needed>\d+)\)",
        _device_iterations,
    ),
    (r"Multiple independent losses found in graph", _two_losses),
)
"""Pattern of a message (of PopTorch 3.4 and Poplar 3.4) -> what explains it."""
