"""Executables in files: the model, the signature and the state, to compile again from.

An emulated executable is not a program for a device: a file holds what is needed to
repeat the capture, which is cheap, and loads in the version that wrote it only.
"""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from poptorch import _wrapped
from poptorch._args_parser import ParsedArgs
from poptorch._compile import Executable
from poptorch._errors import Error

_MAGIC = "poptorch-emulator-executable"


class ExecutorFiles:
    """The part of `PoplarExecutor` that reads and writes files."""

    _executable: Executable | None
    _options: Any
    _optimizer: Any
    _training: bool
    _user_model: Any
    _poptorch_version: str
    _module: Any
    _compiled_modes: dict[str, bool]
    rng_state: Any

    def compileAndExport(
        self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any
    ) -> None:
        """Compile for these arguments and save."""
        self.compile(*args, **kwargs)  # type: ignore[attr-defined]
        self.save(filename, export_model=export_model)

    def save(
        self, filename: str, export_model: bool = True, save_rng_state: bool = True
    ) -> None:
        """Write the executable; with `export_model` also the user's model.

        A directory stands for `model.poptorch` in it.

        Raises:
            Error: Not compiled, or a model that cannot be pickled.
        """
        graph = self._executable
        if graph is None:
            raise Error("Model has not been compiled or has been destroyed.")
        self.copyWeightsToHostIfNeeded()  # type: ignore[attr-defined]
        path = Path(filename)
        if os.path.isdir(filename):
            path = path / "model.poptorch"
        path.parent.mkdir(parents=True, exist_ok=True)
        call = graph.signature
        content = {
            "magic": _MAGIC,
            "version": self._poptorch_version,
            "training": self._training,
            "call": (call.args, call.kwargs, call.names),
            "modes": self._compiled_modes,
            "rng_state": self.rng_state if save_rng_state else None,
            "model": self._user_model if export_model else None,
            "options": self._options if export_model else None,
            "optimizer": self._optimizer if export_model else None,
        }
        try:
            torch.save(content, path)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            path.unlink(missing_ok=True)
            raise Error(
                "The model can't be exported because it can't be pickled "
                f"({error}); use export_model=False to save the executable alone"
            ) from error

    def loadExecutable(self, filename: str) -> None:
        """Use the executable in a file, made from the same model and options."""
        self._load_content(read(filename, self._poptorch_version))

    def _load_content(self, content: dict[str, Any]) -> None:
        args, kwargs, names = content["call"]
        call = ParsedArgs(args, kwargs, names)
        empty = (torch.zeros(t.shape, dtype=t.dtype) for t in call.tensors())
        with _modes(self._module, content["modes"]):
            self._compile(call.with_tensors(empty))  # type: ignore[attr-defined]
        if content["rng_state"] is not None:
            self.rng_state = content["rng_state"]


@contextmanager
def _modes(model: nn.Module, modes: dict[str, bool]) -> Iterator[None]:
    """Modules train or not as when the executable was made."""
    modules = dict(model.named_modules())
    before = {name: module.training for name, module in modules.items()}
    for name in modes.keys() & modules.keys():
        modules[name].training = modes[name]
    try:
        yield
    finally:
        for name, module in modules.items():
            module.training = before[name]


def read(filename: str, version: str) -> dict[str, Any]:
    path = Path(filename)
    if path.is_dir():
        path = path / "model.poptorch"
    try:
        content = torch.load(path, weights_only=False)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise Error(f"{filename} can't be read as an executable: {error}") from error
    if not isinstance(content, dict) or content.get("magic") != _MAGIC:
        raise Error(f"{filename} is not an executable of the PopTorch emulator")
    if content["version"] != version:
        raise Error(
            f"{filename} was written by version {content['version']}, which "
            f"{version} can't load"
        )
    return content


def shallow(model: Any) -> Any:
    """A copy with its own `training` flag, sharing parameters and sub-modules."""
    twin = copy.copy(model)
    if isinstance(twin, _wrapped.WrappedModule):
        twin.__dict__.pop(_wrapped.KEY, None)
        twin.__class__ = twin._poptorch_base
    return twin
