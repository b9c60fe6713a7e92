"""Other packages' registries, models, data and configs; each imported when named.

`attach` is what `devrun.scopes` asks for a scope. A package of OpenMMLab has one of two
kinds: of MMCV 1.x, or of MMEngine; which one it is says the installed version.
"""

from __future__ import annotations

import functools
from importlib import import_module, metadata, util

from devrun.errors import ConfigError
from devrun.scopes import Scope

__all__ = ["attach", "installed", "whose"]

_KINDS = {
    "openmmlab": {
        "mmcv": ("mmcv", "1"),
        "mmcls": ("mmcls", "0"),
        "mmseg": ("mmsegmentation", "0"),
        "mmdet": ("mmdet", "2"),
        "mmpose": ("mmpose", "0"),
    },
    "mmengine": {
        "mmengine": ("mmengine", "0"),
        "mmpretrain": ("mmpretrain", "1"),
        "mmseg": ("mmsegmentation", "1"),
        "mmdet": ("mmdet", "3"),
        "mmpose": ("mmpose", "1"),
    },
}
"""Kind of scope (a module here) -> scope -> distribution and its major version."""
_FITS = {
    "openmmlab": "mmcv 1.7.2 with mmcls 0.25, mmseg 0.30, mmdet 2.28 or mmpose 0.29",
    "mmengine": "mmengine 0.10 with mmcv 2.1, mmpretrain 1.2 or mmseg 1.2",
}
_OTHER_NAMES = {"mmcv": ("mmcv", "mmcv-full", "mmcv-lite")}
_KNOWN = {
    "ImageClassifier": ("mmcls", "mmpretrain"),
    **dict.fromkeys(("EncoderDecoder", "CascadeEncoderDecoder"), ("mmseg",)),
    **dict.fromkeys(("TopDown", "AssociativeEmbedding"), ("mmpose",)),
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
        ConfigError: the package is missing or of another generation.
    """
    kind = _kind_of(name)
    scope: Scope = import_module(f"devrun.interop.{kind}").attach(name)
    return scope


def installed() -> list[str]:
    """The scopes whose package can be imported, found out without importing it."""
    names = dict.fromkeys(name for scopes in _KINDS.values() for name in scopes)
    return [name for name in names if util.find_spec(name) is not None]


def whose(kind: str, name: str) -> str:
    """A clause that says which package would have `name`; empty where none is known."""
    owners = _KNOWN.get(name, ()) if kind == "model" else ()
    if not owners:
        return ""
    there = [owner for owner in owners if owner in installed()]
    if there:
        return f"{there[0]} has it: write default_scope: {there[0]}"
    return f"{' or '.join(owners)} has it, which is not installed"


def version_of(name: str) -> str | None:
    """The version of the distribution that brings the package `name`."""
    known = [scopes[name][0] for scopes in _KINDS.values() if name in scopes]
    for distribution in _OTHER_NAMES.get(name, known):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _kind_of(name: str) -> str:
    """Which module here makes the scope: by the version that is installed.

    Raises:
        ConfigError: the package is missing, or its foundation does not fit.
    """
    kinds = {kind: scopes[name] for kind, scopes in _KINDS.items() if name in scopes}
    fits = " or ".join(_FITS[kind] for kind in kinds)
    if util.find_spec(name) is None:
        raise ConfigError(
            f"the scope {name!r} needs the package {name!r}, which is not installed: "
            f"{fits}"
        )
    version = version_of(name) or ""
    fitting = [k for k, (_, major) in kinds.items() if version.split(".")[0] == major]
    if not fitting and version:
        raise ConfigError(
            f"the scope {name!r} is known of {fits}; {name} {version} is installed"
        )
    kind = (fitting or list(kinds))[0]  # a checkout that nothing installed
    base, major = ("mmcv", "1") if kind == "openmmlab" else ("mmengine", "0")
    found = version_of(base)
    if found is not None and found.split(".")[0] != major:
        raise ConfigError(
            f"{name} {version} needs {base} {major}.x, {base} {found} is installed: "
            f"{_FITS[kind]}, each generation in an environment of its own"
        )
    return kind
