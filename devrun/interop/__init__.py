"""Other packages' registries, models, data and configs; each imported when named.

This is the one door to them, and it has two wings: `translated` says what a config
means in devrun's words, before anything of it is built; `contract_of`, how a model that
a run is given is trained. `devrun.scopes` asks for scopes with `attach`. A package of
OpenMMLab has one of two kinds: of MMCV 1.x, or of MMEngine; which one it is says the
installed version.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module, util
from pathlib import Path
from typing import Any, NamedTuple

from devrun.config.config import Config
from devrun.config.engine import is_engine_style
from devrun.config.tree import where
from devrun.errors import ConfigError
from devrun.interop.packages import FITS, KINDS
from devrun.interop.packages import SCOPES as SCOPES
from devrun.models.step_module import ModelContract
from devrun.registry import MODELS
from devrun.scopes import Scope

_CONTRACTS = {
    "lightning.pytorch": "lightning",
    "pytorch_lightning": "lightning",
    "mmengine.model": "mmengine.step",
}
"""Package -> module here that makes the contracts of its models."""
_KNOWN = {
    "ImageClassifier": ("mmcls", "mmpretrain"),
    **dict.fromkeys(("EncoderDecoder", "CascadeEncoderDecoder"), ("mmseg",)),
    **dict.fromkeys(
        ("FasterRCNN", "MaskRCNN", "CascadeRCNN", "RetinaNet", "FCOS", "YOLOX", "DETR"),
        ("mmdet",),
    ),
}
"""Models that configs begin with -> the packages that have them."""


@functools.lru_cache(maxsize=None)
def attach(name: str) -> Scope:
    """The scope `name`, with its package imported.

    Raises:
        ConfigError: the package is missing, or its import fails.
    """
    kind = _kind_of(name)
    scope: Scope = _home(f"{kind}.scope").attach(name)
    return scope


def read(config: Any, split: str = "val") -> Any:
    """`config` in devrun's sections, of whatever style it was.

    Args:
        split: `val` or `test`: whose evaluator an MMEngine-style config is read for.

    Raises:
        ConfigError: a value that devrun has no word for, with its file, line and key.
    """
    if not (isinstance(config, Config) and is_engine_style(config)):
        return config
    return _home("mmengine.translate").translated(config, split)


class PlainForm(NamedTuple):
    """What a config means in devrun's words."""

    cfg: Mapping[str, Any]
    scope: str | None
    """Where its names without a scope are looked up first; see `devrun.scopes`."""
    loaders: Callable[..., tuple[list[Any], Any]] | None
    """Makes the loaders where no data sets are named, one for each phase of the
    workflow and that of the evaluation: `loaders(workflow, only, validate)`."""


def translated(cfg: Mapping[str, Any]) -> PlainForm:
    """`cfg`, of whatever style; who builds of what this gives knows no other framework.

    Raises:
        ConfigError: no such scope, or a value that devrun has no word for.
    """
    cfg = read(cfg)
    scope = scope_of(cfg)
    if scope is not None and _kind_of(scope) == "openmmlab":
        cfg = _home("openmmlab.config").adapted(cfg)
    data, loaders = cfg.get("data"), None
    if isinstance(data, Mapping) and "type" in data:
        loaders = functools.partial(_home("lightning_data").module_loaders, data)
    return PlainForm(cfg, scope, loaders)


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


def contract_of(model: Any) -> ModelContract | None:
    """How `model` is trained where it is of a framework that leaves the step to it: a
    LightningModule, or a `BaseModel` of MMEngine; else None."""
    for package, home in _CONTRACTS.items():
        if package in sys.modules:
            contract: ModelContract | None = _home(home).contract_of(model)
            if contract is not None:
                return contract
    return None


def _home(name: str) -> Any:
    """A module here, which is imported when something of its framework is given."""
    return import_module(f"devrun.interop.{name}")


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
    kinds = [kind for kind, names in KINDS.items() if name in names]
    if util.find_spec(name) is None:
        raise ConfigError(
            f"the scope {name!r} needs the package {name!r}, which is not installed: "
            f"{' or '.join(FITS[kind] for kind in kinds)}"
        )
    mmcv = util.find_spec("mmcv")
    origin = None if mmcv is None else mmcv.origin
    older = origin is not None and Path(origin).with_name("runner").is_dir()
    return kinds[0] if older or len(kinds) == 1 else kinds[1]
