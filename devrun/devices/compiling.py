"""`compile`: torch.compile with a backend of torch, or of the user's own."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from textwrap import shorten
from typing import Any

import torch
from torch import nn

from devrun.construct import where
from devrun.devices.options import EagerOptions
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.models.blocks import blocks_of
from devrun.parallel.strategy import Strategy
from devrun.text import joined
from devrun.torch_features import needs
from devrun.trust import granted, import_path

logger = logging.getLogger("devrun")


def check_compile(options: EagerOptions, strategy: Strategy) -> None:
    """Refuse to compile a model whose weights are divided over processes."""
    if strategy.divided and options.compile:
        raise UnsupportedFeatureError(
            f"compile cannot be combined with parallel: {strategy.mesh.describe()}; "
            "leave one of the two out",
            key="compile",
        )


def compile_in_place(
    module: nn.Module, setting: bool | Mapping[str, Any] | None
) -> None:
    """Compile `module` under its own name, so that its `state_dict` keys stay.

    With `regions`, each of its blocks, which share one graph; all of it without any.
    """
    if not setting:
        return
    needs("2.2", "compile", "compile")
    arguments = dict(setting) if isinstance(setting, Mapping) else {}
    parts = [("", module)]
    if arguments.pop("regions", False):
        parts = blocks_of(module) or parts
    fallback, backend = arguments.pop("fallback", None), arguments.get("backend", "")
    told: list[str] = []
    try:
        for name, part in parts:
            if fallback or (isinstance(backend, str) and "." in backend):
                what = f"{type(part).__name__} {name}".strip()
                attempt = functools.partial(_compiled, backend, what, fallback, told)
                arguments["backend"] = attempt
            if type(part).forward.__module__.startswith("torch."):
                # torch's compiler passes over calls that its own modules begin with
                part._compiled_call_impl = torch.compile(_calling(part), **arguments)
            else:
                part.compile(**arguments)
    except TypeError as error:
        known = inspect.signature(torch.compile).parameters
        wrong = next((key for key in arguments if key not in known), None)
        raise ConfigError(
            f"compile: {arguments!r} is not for torch.compile: {error}",
            place=None if wrong is None else where(setting, wrong),
        ) from error


def _calling(module: nn.Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    return call


def _compiled(
    backend: str,
    what: str,
    fallback: str | None,
    told: list[str],
    graph: Any,
    inputs: Any,
    **options: Any,
) -> Callable[..., Any]:
    """What `backend` makes of a graph of `what`; with `fallback`, the graph itself.

    Raises:
        ConfigError: it makes nothing of it, in one line.
    """
    try:
        if "." in backend:
            with granted(everything=True):  # the options were looked at before
                compiler = import_path(backend).target
        else:
            compiler = torch._dynamo.lookup_backend(backend)
        return compiler(graph, inputs, **options)  # type: ignore[no-any-return]
    except Exception as error:
        said = f"backend {backend!r} cannot compile {what}"
        cause = shorten(f"{type(error).__name__}: {joined(error)}", 200)
        if fallback is None:
            raise ConfigError(
                f"compile: {said} ({cause}): set compile: {{fallback: eager}} to go on "
                "without, or leave compile out",
                key="compile",
            ) from error
        if what not in told:
            told.append(what)
            logger.warning("%s, which runs uncompiled (%s)", said, cause)
        return graph.forward  # type: ignore[no-any-return]
