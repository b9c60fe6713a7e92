"""Other packages' registries, models, data and configs; each imported when named.

`attach` is what `devrun.scopes` asks for a scope. A package of OpenMMLab has one of two
kinds: of MMCV 1.x, or of MMEngine; which one it is says the installed version.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module, util
from pathlib import Path
from typing import Any

from devrun.blame import cause_of
from devrun.config.tree import where
from devrun.errors import ConfigError, DevrunError
from devrun.interop.packages import FITS
from devrun.registry import MODELS
from devrun.scopes import SCOPES, Scope, within

__all__ = [
    "attach",
    "guest_of",
    "init_weights",
    "installed",
    "module_loaders",
    "move_augments",
    "opened",
    "scope_of",
    "whose",
]

_KINDS = {
    "openmmlab": ("mmcv", "mmcls", "mmseg", "mmdet"),
    "mmengine": ("mmengine", "mmpretrain", "mmseg", "mmdet"),
}
"""Kind of scope (a folder here) -> scopes."""
_BASES = ("mmcv.runner.base_module", "mmengine.model.base_module")
"""Modules of `BaseModule`, whose first weights come by rules of its own."""
_GUESTS = {
    "lightning.pytorch": "lightning",
    "pytorch_lightning": "lightning",
    "mmengine.model": "mmengine.step",
}
"""Package -> module here that runs models of its kind."""
_KNOWN = {
    "ImageClassifier": ("mmcls", "mmpretrain"),
    **dict.fromkeys(("EncoderDecoder", "CascadeEncoderDecoder"), ("mmseg",)),
    **dict.fromkeys(
        ("FasterRCNN", "MaskRCNN", "CascadeRCNN", "RetinaNet", "FCOS", "YOLOX", "DETR"),
        ("mmdet",),
    ),
}
"""Models that configs begin with -> the packages that have them."""


@functools.cache
def attach(name: str) -> Scope:
    """The scope `name`, with its package imported.

    Raises:
        ConfigError: the package is missing, or its import fails.
    """
    kind = _kind_of(name)
    scope: Scope = import_module(f"devrun.interop.{kind}.scope").attach(name)
    return scope


@contextmanager
def opened(cfg: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Inside, names of `cfg` are those of its scope; gives `cfg` in devrun's words."""
    name = scope_of(cfg)
    if name is None:
        yield cfg
        return
    with within(name):
        yield attach(name).adapted(cfg)


def scope_of(cfg: Mapping[str, Any]) -> str | None:
    """The scope that `cfg` was written for; None for devrun.

    `default_scope` says so, else the name of its model, where one scope alone has it
    and devrun does not.

    Raises:
        ConfigError: two installed packages have a model of that name.
    """
    given = cfg.get("default_scope")
    if given is not None:
        if given != "devrun" and given not in SCOPES:
            raise ConfigError.of(
                "default_scope",
                f"must be one of {', '.join(('devrun', *SCOPES))}, got {given!r}",
                where(cfg, "default_scope"),
            )
        return None if given == "devrun" else str(given)
    model = cfg.get("model")
    kind = model.get("type") if isinstance(model, Mapping) else None
    if not isinstance(kind, str) or "." in kind or kind in MODELS:
        return None
    owners = [name for name in _KNOWN.get(kind, ()) if name in installed()]
    if not owners:
        owners = [s.name for s in _usable() if s.find("model", kind) is not None]
    if len(owners) > 1:
        raise ConfigError(
            f"{kind!r} is a model of the scopes {' and '.join(owners)}: write "
            f"default_scope: {owners[0]}, or {owners[0]}.{kind}",
            place=where(model, "type"),
        )
    return owners[0] if owners else None


def _usable() -> Iterator[Scope]:
    """The scopes whose package is here, fits and lacks nothing itself."""
    for name in installed():
        with suppress(ConfigError):
            yield attach(name)


def init_weights(model: Any) -> None:
    """The first weights by MMCV's or MMEngine's rules, for a model of their kind.

    Their models are built with torch's own and get theirs in a second step, `init_cfg`
    of each part, which may read files.

    Raises:
        ConfigError: a file that `init_cfg` names is missing or does not fit.
    """
    bases = [getattr(sys.modules.get(name), "BaseModule", ()) for name in _BASES]
    if not any(isinstance(model, base) for base in bases):
        return
    quiet = logging.getLogger("mmcv")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # a line for each parameter
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.init_weights()
    except DevrunError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the first weights of {type(model).__name__} failed: {cause_of(error)}"
        ) from error
    finally:
        quiet.setLevel(level)


def module_loaders(
    data: Mapping[str, Any], modes: Sequence[str], evaluated: str | None
) -> tuple[list[Any], Any]:
    """The loaders of a data module: one for each of `modes`, and that to evaluate on.

    Raises:
        ConfigError: no such module, or it makes no loader of one of `modes`.
    """
    home = import_module("devrun.interop.lightning_data")
    found: tuple[list[Any], Any] = home.module_loaders(data, modes, evaluated)
    return found


def guest_of(model: Any) -> Any:
    """What runs `model` where it is of another framework that leaves the step to it:
    a LightningModule, or a `BaseModel` of MMEngine; else None."""
    for package, home in _GUESTS.items():
        if package in sys.modules:
            guest = import_module(f"devrun.interop.{home}").guest_of(model)
            if guest is not None:
                return guest
    return None


def move_augments(model: Any, loaders: Iterable[Any]) -> None:
    """Take out of the model what a compiled graph would freeze: its mixup and cutmix.

    It is done where the batches of `loaders`, DataLoaders of the training, are made.
    """
    if "mmcls" in sys.modules:
        parts = import_module("devrun.interop.openmmlab.parts")
        parts.move_augments(model, loaders)


def installed() -> list[str]:
    """The scopes whose package can be imported, found out without importing it."""
    return [name for name in SCOPES if util.find_spec(name) is not None]


def whose(kind: str, name: str) -> str:
    """A clause that says which package has `name`; empty if none is known to."""
    owners = _KNOWN.get(name, ()) if kind == "model" else ()
    if not owners:
        return ""
    there = [owner for owner in owners if owner in installed()]
    if there:
        return f"{there[0]} has it: write default_scope: {there[0]}"
    return f"{' or '.join(owners)} has it, which is not installed"


def _kind_of(name: str) -> str:
    """Which folder here makes the scope; of two generations, by the MMCV that is here.

    Raises:
        ConfigError: the package is missing.
    """
    kinds = [kind for kind, names in _KINDS.items() if name in names]
    if util.find_spec(name) is None:
        raise ConfigError(
            f"the scope {name!r} needs the package {name!r}, which is not installed: "
            f"{' or '.join(FITS[kind] for kind in kinds)}"
        )
    mmcv = util.find_spec("mmcv")
    origin = None if mmcv is None else mmcv.origin
    older = origin is not None and Path(origin).with_name("runner").is_dir()
    return kinds[0] if older or len(kinds) == 1 else kinds[1]
