"""Importing OpenMMLab's packages, on a newer NumPy too, and sections for their code."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from devrun.blame import cause_of
from devrun.checkpoint import CheckpointLoader
from devrun.construct import call, where
from devrun.errors import (
    ConfigError,
    DevrunError,
    UnknownNameError,
    UnsupportedFeatureError,
    nearest,
)
from devrun.place import Place
from devrun.trust import import_for_config

_OPERATORS = "mmcv._ext"
_WITH_INT = (
    "mmdet.datasets.custom",
    "mmdet.datasets.openimages",
    "mmdet.core.bbox.samplers.iou_balanced_neg_sampler",
)


KINDS = {
    "openmmlab": ("mmcv", "mmcls", "mmseg", "mmdet"),
    "mmengine": ("mmengine", "mmpretrain", "mmseg", "mmdet"),
}
"""Kind of scope (a folder here) -> scopes."""
SCOPES = tuple(sorted({name for names in KINDS.values() for name in names}))
"""Names of scopes; a config that names one may import the package of that name."""
FITS = {
    "openmmlab": "mmcv 1.7.2 with mmcls 0.25, mmseg 0.30 or mmdet 2.28",
    "mmengine": "mmengine 0.10 with mmcv 2.1, mmpretrain 1.2 or mmseg 1.2",
}
"""Kind of scope -> versions that go together."""
_UNKNOWN = re.compile(r"([\w/.-]+) is not in the (?:(\w+)::)?([\w ]+) registry")


def imported(scope: str, kind: str, *modules: str) -> None:
    """Import `modules` for `scope`.

    Raises:
        ConfigError: it fails.
    """
    for module in modules:
        try:
            import_for_config(module)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"the scope {scope!r}: importing {module} failed: {cause_of(error)}; "
                f"these fit: {FITS[kind]}"
            ) from error


def built_by(
    make: Callable[[], Any],
    name: str,
    args: dict[str, Any],
    cfg: Mapping[str, Any],
    scope: str,
    known: Callable[[str], Iterable[str]],
) -> Any:
    """What `make` makes of the section `cfg`, whose `type` is `name`.

    Args:
        known: the names that the registry of a group has.

    Raises:
        ConfigError: in one line; of a part that no registry has, where it was written.
    """

    def built(**_: Any) -> Any:
        return make()

    built.__name__ = name
    try:
        return call(built, args, cfg)
    except DevrunError as error:
        found = _UNKNOWN.search(str(error.__cause__ or ""))
        if found is None:
            raise
        part, owner, group = found.groups()
        told = UnknownNameError(
            f"{part!r} is not in the {group} registry of {owner or scope}; "
            f"{nearest(part, known(group))}"
        )
        told.locate(_place_of(part, cfg) or where(cfg))
        raise told from error.__cause__


def stand_in() -> None:
    """Put a module in the place of MMCV's compiled operators where it has none.

    The packages import all of their models at once, and most need no operator: each is
    there, and says by its name that it is missing when it is called.

    Raises:
        ConfigError: MMCV is where a config cannot import from.
    """
    if _OPERATORS in sys.modules or importlib.util.find_spec("mmcv") is None:
        return
    import_for_config("mmcv")  # to look for a module in it would import it anyhow
    if importlib.util.find_spec(_OPERATORS) is None:
        sys.meta_path.append(_Finder())


class _Finder(MetaPathFinder, Loader):
    """Finds the stand-in; asked last, so that a real module is found before."""

    def find_spec(
        self, fullname: str, path: Any, target: Any = None
    ) -> ModuleSpec | None:
        return ModuleSpec(_OPERATORS, self) if fullname == _OPERATORS else None

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__getattr__"] = _missing


def _missing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        version = str(getattr(sys.modules.get("mmcv"), "__version__", ""))
        whole = "mmcv-full 1.7" if version.startswith("1.") else "mmcv 2.1"
        raise UnsupportedFeatureError(
            f"{name} is one of MMCV's compiled operators, which this mmcv {version} "
            f"does not have: install {whole} for this torch, or take a model without it"
        )

    return missing


def mend_numpy(package: str) -> None:
    """Have the package see what it calls of NumPy 1 that newer ones do not have.

    - `mmcv.adjust_hue` writes `np.uint8(hue_factor * 255)`, taken modulo 256 once.
    - MMPretrain's retrieval metrics call `np.in1d`, which NumPy 2.4 has as `np.isin`.
    - MMDetection 2 says `np.int`, which NumPy 1.24 took out.
    """
    np: Any = import_module("numpy")
    if "mmcv.image" in sys.modules:

        class Uint8(np.uint8):
            def __new__(cls, value: Any = 0) -> Any:
                return np.uint8(int(value) % 256)

        _give("mmcv.image.photometric", uint8=Uint8)
    if package == "mmpretrain" and not hasattr(np, "in1d"):
        _give("mmpretrain.evaluation.metrics.retrieval", in1d=np.isin)
    for module in _WITH_INT if package == "mmdet" else ():
        _give(module, int=int)


def _give(module: str, **names: Any) -> None:
    """Have the module see a numpy with these names too; numpy stays as it is."""
    home: Any = import_module(module)
    view: Any = types.ModuleType("numpy")
    vars(view).update(vars(home.np), **names)
    home.np = view


def read_weights_here(loader: Any) -> None:
    """Have the `CheckpointLoader` of MMCV or MMEngine read local files by devrun's.

    Theirs leaves it to `torch.load`, which since torch 2.6 refuses files of their own
    with numbers of numpy in `meta`.
    """
    loader.register_scheme("", _weights_of, force=True)


def _weights_of(filename: str, map_location: Any = None, logger: Any = None) -> Any:
    path = os.path.expanduser(filename)
    return CheckpointLoader.load_checkpoint(path, map_location or "cpu")


def in_dicts(kind: Callable[[Any], Any], section: Any) -> Any:
    """A copy of `section`, of `kind` where it has dicts: the package's own, whose keys
    are attributes too."""
    if isinstance(section, dict):
        return kind({key: in_dicts(kind, value) for key, value in section.items()})
    if isinstance(section, list) or type(section) is tuple:
        made = [in_dicts(kind, value) for value in section]
        return tuple(made) if isinstance(section, tuple) else made
    return section


def _place_of(name: str, node: Any) -> Place | None:
    """Where `type: name` was written in the section."""
    if isinstance(node, Mapping):
        if node.get("type") == name:
            return where(node, "type")
        node = node.values()
    elif not isinstance(node, (list, tuple)):
        return None
    return next((p for part in node if (p := _place_of(name, part)) is not None), None)
