"""From a file to one tree: its syntax, its `_base_` files, templates, environment."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from devrun.config import environment
from devrun.config.limits import Budget, check_depth, copied
from devrun.config.merge import DELETE, merge
from devrun.config.origin import config_error, describe
from devrun.config.python_reader import Reader
from devrun.config.source import MissingFileError, extension, read_text
from devrun.config.template import Template, look_up
from devrun.config.tree import (
    ConfigDict,
    ConfigList,
    children,
    origin_of,
    place,
    rehome,
)
from devrun.config.yaml_reader import read_json, read_yaml
from devrun.errors import ConfigError
from devrun.place import KeyPath, Origin, Place

BASE = "_base_"
DEPRECATION = "_deprecation_"
HELPERS = "_helpers_"
RESERVED = ("filename", "text", "pretty_text")
MAX_FILES = 100


@dataclass
class Loader:
    """Loads one configuration and the files it is based on.

    `helpers` are the variables that some file reads itself.
    """

    use_variables: bool = True
    trust: bool = False
    helpers: set[str] = field(default_factory=set)
    budget: Budget = field(default_factory=Budget)
    files: int = 0

    def load(self, path: str) -> tuple[ConfigDict, str]:
        """The finished tree of the file at `path`, and the text of the file.

        Raises:
            ConfigError: one line with the file, the line, the key and the reason.
        """
        text = read_text(path)
        return self.load_text(text, path), text

    def load_text(self, text: str, path: str) -> ConfigDict:
        try:
            return finish(self.read(text, path, ()), self.budget, path)
        except ConfigError as error:
            error.locate(Place(Origin(path)))
            raise
        except (MemoryError, RecursionError):
            raise config_error("nested too deeply to be read", Origin(path)) from None
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise config_error(f"{half!r} is no character", Origin(path)) from None

    def read(self, text: str, path: str, chain: tuple[str, ...]) -> ConfigDict:
        """The tree of one file with its bases; `chain` are the files that led to it."""
        self.files += 1
        if self.files > MAX_FILES:
            raise config_error(f"more than {MAX_FILES} files", Origin(path), [BASE])
        self.budget.charge(len(text) >> 5)
        template = Template(text, path, self.budget, file_variables=self.use_variables)
        source = _Source(self, template, (*chain, os.path.realpath(path)))
        own = source.read(extension(path))
        if (note := own.pop(DEPRECATION, None)) is not None:
            text = f"{path} is deprecated, as its {DEPRECATION} says: {note}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        self._take_helpers(own)
        if source.bases is None:
            return own
        merge(own, source.bases)
        return source.bases

    def _take_helpers(self, own: ConfigDict) -> None:
        """A dumped configuration says which of its keys were helper variables."""
        if HELPERS not in own:
            return
        origin = origin_of(own, HELPERS)
        names = own.pop(HELPERS)
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            reason = f"takes a list of top-level keys, not {describe(names)}"
            raise config_error(reason, origin, [HELPERS])
        self.helpers.update(names)

    def copy(self, value: Any, origin: Origin | None = None) -> Any:
        return copied(value, self.budget, origin, any_leaf=self.trust)


class _Source:
    """One file while it is read."""

    def __init__(
        self, loader: Loader, template: Template, chain: tuple[str, ...]
    ) -> None:
        self._loader = loader
        self._template = template
        self._chain = chain
        self.bases: ConfigDict | None = None
        self._opened = False

    def read(self, suffix: str) -> ConfigDict:
        text, file = self._template.text, self._template.file
        loader, budget = self._loader, self._loader.budget
        loader.helpers |= self._template.base_names
        if suffix == ".py" and not loader.trust:
            reader = Reader(file, budget, self._fill, self._live, self._load_bases)
            raw, names = reader.read(text)
            loader.helpers |= names
            if self._opened and self.bases is not None:
                self.bases = loader.copy(self.bases)
            own: ConfigDict = loader.copy(raw)
            return own
        if suffix == ".py":
            from devrun.config.trusted import run_python  # the only way to `exec`

            raw, names = run_python(text, file, budget, self._template.markers)
            loader.helpers |= names
        elif suffix == ".json":
            raw = read_json(text, file, budget)
        else:
            raw = read_yaml(text, file, budget)
        own = loader.copy(raw)
        if BASE in own:
            origin = origin_of(own, BASE) or Origin(file)
            self._load_bases(self._fill_tree(own.pop(BASE)), origin)
        return self._fill_tree(own) if self._template.markers else own

    def _fill(self, text: str) -> Any:
        return self._template.fill(text, self._base)

    def _base(self, path: str, origin: Origin) -> Any:
        """A copy of the value that `{{ _base_.path }}` names."""
        return self._loader.copy(self._live(path, origin), origin)

    def _live(self, path: str, origin: Origin) -> Any:
        """The value itself, or all of the bases: what is put into it stays there."""
        if not self._opened:
            # Who picks one variable of the bases uses them as a shelf of variables.
            self._loader.helpers.update(self.bases or ())
        self._opened = True
        return look_up(self.bases, path, origin)

    def _fill_tree(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._fill(value)
        if isinstance(value, ConfigDict):
            filled = ConfigDict()
            filled._meta_.origin = value._meta_.origin
            for key, child in value.items():
                key_filled = self._fill(key) if isinstance(key, str) else key
                origin = origin_of(value, key)
                if isinstance(key_filled, (dict, list)) or key_filled in filled:
                    reason = f"the key {describe(key_filled)} cannot stand here"
                    raise config_error(reason, origin)
                place(filled, key_filled, self._fill_tree(child), origin)
            return filled
        if isinstance(value, ConfigList):
            items = ConfigList(map(self._fill_tree, value))
            items._meta_.origin = value._meta_.origin
            return items
        return tuple(map(self._fill_tree, value)) if type(value) is tuple else value

    def _load_bases(self, given: Any, origin: Origin) -> None:
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, (list, tuple)) or not all(
            isinstance(name, str) and name for name in names
        ):
            reason = (
                f"takes the path of a file or a list of them, not {describe(given)}"
            )
            raise config_error(reason, origin, [BASE])
        if self.bases is not None:
            raise config_error("given twice; remove one", origin, [BASE])
        names = self._loader.copy(list(names), origin)  # no NUL, no half character
        bases = self.bases = ConfigDict()
        for name in names:
            path = _packaged(name, origin) or _beside(self._template.file, name)
            for key, value in (base := self._read_base(path, origin)).items():
                if key in bases:
                    first, second = origin_of(bases, key), origin_of(base, key)
                    reason = f"two bases give the key {describe(key)}: {first} and "
                    reason += f"{second}; keep it in one of them"
                    raise config_error(reason, origin, [BASE])
                place(bases, key, value, origin_of(base, key))

    def _read_base(self, path: str, origin: Origin) -> ConfigDict:
        real = os.path.realpath(path)
        if real in self._chain:
            loop = " -> ".join(os.path.basename(name) for name in (*self._chain, real))
            reason = f"the files inherit in a circle: {loop}; remove one `{BASE}`"
            raise config_error(reason, origin, [BASE])
        try:
            text = read_text(path)
        except MissingFileError:
            given = describe(path)
            raise MissingFileError(
                f"no such file: {given}; paths are relative to the file that names "
                "them",
                place=Place(origin, (BASE,)),
            ) from None
        return self._loader.read(text, path, self._chain)


def _packaged(name: str, origin: Origin) -> str | None:
    """The file that `package::path` stands for, in the configs of that package.

    The package is looked up, and not imported.
    """
    package, found, path = name.partition("::")
    if not found:
        return None
    spec = find_spec(package) if package.isidentifier() else None
    for folder in (spec and spec.submodule_search_locations) or ():
        return os.path.normpath(os.path.join(folder, ".mim", "configs", path))
    reason = f"{describe(name)} is of the package {package!r}, which is not installed"
    raise config_error(reason, origin, [BASE])


def _beside(file: str, name: str) -> str:
    """The path `name`, relative to the directory of `file`, in its shortest form."""
    path = os.path.join(os.path.dirname(file), os.path.expanduser(name))
    short = os.path.normpath(path)
    # Through a symbolic link `a/..` may lead elsewhere than to the parent of `a`.
    return short if os.path.realpath(short) == os.path.realpath(path) else path


def finish(tree: ConfigDict, budget: Budget, path: str = "") -> ConfigDict:
    """Resolve `${env:...}`, drop `_delete_`, and set the key path of each node."""
    for key in tree:
        if not isinstance(key, str) or key.startswith("__") or key in RESERVED:
            reason = f"{describe(key)} cannot be a top-level key; choose another name"
            raise config_error(reason, origin_of(tree, key))
    if tree._meta_.origin is None and path:
        tree._meta_.origin = Origin(path)
    result: ConfigDict = _finish(tree, budget, (), None)
    rehome(result, (), result._meta_.origin)
    return result


def _finish(value: Any, budget: Budget, path: KeyPath, origin: Origin | None) -> Any:
    check_depth(origin, path)
    if type(value) is str:
        try:
            return environment.resolve(value, budget.text)
        except ValueError as error:
            raise config_error(str(error), origin, path) from None
    if isinstance(value, ConfigDict) and path:
        value.pop(DELETE, None)
    made = [
        (key, _finish(child, budget, (*path, key), origin_of(value, key) or origin))
        for key, child in children(value)
    ]
    if type(value) is tuple:
        return tuple(child for _, child in made)
    if isinstance(value, (ConfigDict, ConfigList)):
        kind: Any = value._plain
        for key, child in made:
            kind.__setitem__(value, key, child)
    return value
