"""`collate_fn` and `batch_transform`: what makes a batch of a list of samples."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch.utils.data import default_collate, default_convert

from devrun.construct import short, where
from devrun.data.transforms import Compose, build_pipeline
from devrun.errors import ConfigTypeError, DevrunError
from devrun.registry import COLLATE_FUNCTIONS
from devrun.trust import check_arguments

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

for _function in (default_collate, default_convert):
    COLLATE_FUNCTIONS.register_module(module=_function)


def build_collate(spec: Any) -> Callable[[Any], Any] | None:
    """The function that `spec` describes: a name, a dict with `type`, or itself.

    `type` is a name in COLLATE_FUNCTIONS or a dotted path. A class is constructed
    with the other keys; a function is called with them and the list of samples.

    Raises:
        ConfigError: nothing has that name, or it does not take these arguments.
    """
    if spec is None or (callable(spec) and not isinstance(spec, dict)):
        return spec
    cfg = {"type": spec} if isinstance(spec, str) else spec
    if not (isinstance(cfg, dict) and isinstance(cfg.get("type"), str)):
        raise ConfigTypeError.of(
            "collate_fn", f"takes a name or a dict with a type, not {short(spec)}"
        )
    try:
        target = COLLATE_FUNCTIONS.resolve(cfg["type"])
    except DevrunError as error:
        error.locate(where(cfg, "type"))
        raise
    if inspect.isclass(target):
        built: Callable[[Any], Any] = COLLATE_FUNCTIONS.build(cfg)
        return built
    args = {key: value for key, value in cfg.items() if key != "type"}
    if COLLATE_FUNCTIONS.get(cfg["type"]) is None:
        check_arguments(target, args, lambda key: where(cfg, key))
    try:
        inspect.signature(target).bind([], **args)
    except TypeError as error:
        raise ConfigTypeError(f"collate_fn: {error}", place=where(cfg)) from None
    return functools.partial(target, **args) if args else target


class TransformedBatch:
    """`collate_fn`, then `transform` of its batch: what `batch_transform` asks for.

    What it draws depends on the seed, the epoch and the first sample of the batch, as
    for any collate function: neither workers nor a resume change it.

    Args:
        collate_fn: of the loader.
        transform: a dict with a `type` in TRANSFORMS or a dotted path, or a list of
            them to apply in turn; it takes the batch as one argument, or, as timm's
            `Mixup`, inputs and targets as two.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], transform: Any) -> None:
        self.collate_fn = collate_fn
        built = build_pipeline(transform)
        steps = built if isinstance(built, Compose) else [built]
        self._steps = [(step, _takes_two(step)) for step in steps]

    def __call__(self, samples: Any) -> Any:
        batch = self.collate_fn(samples)
        for step, apart in self._steps:
            batch = step(*batch) if apart else step(batch)
        return batch


def _takes_two(transform: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(transform).parameters.values()
    except ValueError:  # some that are written in C have no signature
        return False
    return sum(p.default is p.empty and p.kind in _BY_PLACE for p in parameters) == 2
