"""From a file to one tree: its syntax, its `_base_` files, templates, environment."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from devrun.config import environment
from devrun.config.engine import ENGINE_KEYS, is_engine_style
from devrun.config.limits import Budget, Copier, TooMuch
from devrun.config.merge import DELETE, merge
from devrun.config.origin import config_error, describe
from devrun.config.python_reader import read_python
from devrun.config.schema import KEYS
from devrun.config.source import MissingFileError, extension, read_text
from devrun.config.template import Template, file_variables, look_up
from devrun.config.tree import ConfigDict, ConfigList, origin_of, place, rehome
from devrun.config.yaml_reader import read_json, read_yaml
from devrun.place import KeyPath, Origin, dotted

BASE = "_base_"
DEPRECATION = "_deprecation_"
HELPERS = "_helpers_"
RESERVED = ("filename", "text", "pretty_text")
MAX_FILES = 100


@dataclass
class Loader:
    """Loads one configuration and the files it is based on.

    `helpers` are the variables that some file reads itself; `files` all files read.
    """

    use_variables: bool = True
    trust: bool = False
    helpers: set[str] = field(default_factory=set)
    files: list[str] = field(default_factory=list)
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        self._copier = Copier(self.budget, any_leaf=self.trust)

    def load(self, path: str) -> tuple[ConfigDict, str]:
        """The finished tree of the file at `path`, and the text of the file.

        Raises:
            ConfigError: one line with the file, the line, the key and the reason.
        """
        text = read_text(path)
        return self.load_text(text, path), text

    def load_text(self, text: str, path: str) -> ConfigDict:
        try:
            tree = self._read(text, path, (os.path.realpath(path),))
            return finish(tree, self.budget, path)
        except TooMuch as error:
            raise config_error(str(error), Origin(path)) from None
        except RecursionError:
            raise config_error("nested too deeply to be read", Origin(path)) from None
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise config_error(f"{half!r} is no character", Origin(path)) from None

    def _read(self, text: str, path: str, chain: tuple[str, ...]) -> ConfigDict:
        self.files.append(path)
        if len(self.files) > MAX_FILES:
            raise config_error(f"more than {MAX_FILES} files", Origin(path), [BASE])
        self.budget.charge(len(text) >> 5)
        variables = file_variables(path) if self.use_variables else None
        source = _Source(self, Template(text, path, variables, self.budget), chain)
        own = source.read(extension(path))
        _warn_if_deprecated(own, path)
        self._take_helpers(own)
        if source.bases is None:
            return own
        self._warn_of_stale_helpers(own, source)
        merge(own, source.bases)
        self._copier.visit(source.bases)
        return source.bases

    def load_base(
        self, path: str, origin: Origin, chain: tuple[str, ...]
    ) -> ConfigDict:
        real = os.path.realpath(path)
        if real in chain:
            loop = " -> ".join(os.path.basename(name) for name in (*chain, real))
            reason = f"the files inherit in a circle: {loop}; remove one `{BASE}`"
            raise config_error(reason, origin, [BASE])
        try:
            text = read_text(path)
        except MissingFileError:
            given = describe(path)
            raise MissingFileError(
                f"{origin}: {BASE}: no such file: {given}; paths are relative to "
                "the file that names them"
            ) from None
        return self._read(text, path, (*chain, real))

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
        return self._copier.copy(value, origin)

    def _warn_of_stale_helpers(self, own: ConfigDict, source: _Source) -> None:
        """A helper set again here does not reach the base's values made from it."""
        base = source.bases or ConfigDict()
        stale = source.base_helpers - source.own_read - KEYS.keys()
        if is_engine_style(base):
            stale -= ENGINE_KEYS
        for name in own.keys() & base.keys() & stale:
            if own[name] == base[name]:
                continue
            logging.getLogger("devrun").warning(
                "%s: %s: set here and used nowhere in this file; what the base made "
                "from its own value stays as it was",
                origin_of(own, name),
                name,
            )


class _Source:
    """One file while it is read."""

    def __init__(
        self, loader: Loader, template: Template, chain: tuple[str, ...]
    ) -> None:
        self._loader = loader
        self._template = template
        self._chain = chain
        self.bases: ConfigDict | None = None
        self._shelves: set[str | None] = set()
        self.base_helpers: set[str] = set()
        self.own_read: set[str] = set(template.base_names)
        self._opened = False

    def read(self, suffix: str) -> ConfigDict:
        text, file = self._template.text, self._template.file
        if suffix == ".py" and not self._loader.trust:
            found = read_python(
                text,
                file,
                self._loader.budget,
                self._fill,
                self._live,
                self._load_bases,
            )
            self.own_read |= found.read
            if self._opened and self.bases is not None:
                self.bases = self._loader.copy(self.bases)
            own = self._loader.copy(found.values)
        else:
            own = self._read_data(suffix, text, file)
        self._loader.helpers |= self.own_read
        tree: ConfigDict = own
        return tree

    def _read_data(self, suffix: str, text: str, file: str) -> ConfigDict:
        if suffix == ".py":
            from devrun.config.trusted import run_python  # the only way to `exec`

            found = run_python(text, file, self._loader.budget, self._template.markers)
            self.own_read |= found.read
            raw = found.values
        elif suffix == ".json":
            raw = read_json(text, file, self._loader.budget, self._template.is_marker)
        else:
            raw = read_yaml(text, file, self._loader.budget)
        own: ConfigDict = self._loader.copy(raw)
        if BASE in own:
            origin = origin_of(own, BASE) or Origin(file)
            self._load_bases(self._fill_tree(own.pop(BASE)), origin)
        if self._template.markers:
            own = self._fill_tree(own)
        return own

    def _fill(self, text: str) -> Any:
        return self._template.fill(text, self._base)

    def _base(self, path: str, origin: Origin) -> Any:
        """A copy of the value that `{{ _base_.path }}` names."""
        return self._loader.copy(self._live(path, origin), origin)

    def _live(self, path: str, origin: Origin) -> Any:
        """The value itself, or all of the bases: what is put into it stays there."""
        self._opened = True
        if not path and self.bases is not None:
            return self.bases
        value = look_up(self.bases, path, origin)
        bases = self.bases if self.bases is not None else ConfigDict()
        library = _file_of(bases, path.split(".")[0])
        if library not in self._shelves:
            # Who picks one variable of a file uses the file as a shelf of them.
            self._shelves.add(library)
            shelf = (key for key in bases if _file_of(bases, key) == library)
            self._loader.helpers.update(shelf)
        return value

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
            items = ConfigList(self._fill_tree(item) for item in value)
            items._meta_.origin = value._meta_.origin
            return items
        if isinstance(value, tuple):
            return tuple(self._fill_tree(item) for item in value)
        return value

    def _load_bases(self, given: Any, origin: Origin) -> None:
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, (list, tuple)) or not all(
            isinstance(name, str) and name for name in names
        ):
            reason = (
                f"takes the path of a file or a list of them, not {describe(given)}"
            )
            raise config_error(reason, origin, [BASE])
        names = self._loader.copy(list(names), origin)  # no NUL, no half character
        before = set(self._loader.helpers)
        self._loader.helpers.clear()
        self.bases = ConfigDict()
        for name in names:
            path = _packaged(name, origin) or _beside(self._template.file, name)
            self._add(self._loader.load_base(path, origin, self._chain), origin)
        self.base_helpers = set(self._loader.helpers)
        self._loader.helpers |= before

    def _add(self, base: ConfigDict, origin: Origin) -> None:
        bases = self.bases if self.bases is not None else ConfigDict()
        for key, value in base.items():
            if key in bases:
                raise config_error(
                    f"two bases give the key {describe(key)}: {origin_of(bases, key)} "
                    f"and {origin_of(base, key)}; keep it in one of them",
                    origin,
                    [BASE],
                )
            place(bases, key, value, origin_of(base, key))


def _file_of(tree: ConfigDict, key: str) -> str | None:
    origin = origin_of(tree, key)
    return origin.file if origin else None


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
    try:
        same = os.path.realpath(short) == os.path.realpath(path)
    except ValueError:
        same = True
    return short if same else path


def _warn_if_deprecated(tree: ConfigDict, path: str) -> None:
    if DEPRECATION not in tree:
        return
    origin = origin_of(tree, DEPRECATION)
    note = tree.pop(DEPRECATION)
    text = f"{origin}: this configuration is deprecated"
    if isinstance(note, dict):
        for word, key in (("use", "expected"), ("see", "reference")):
            if isinstance(note.get(key), str):
                text += f"; {word} {note[key]}"
    warnings.warn(text, DeprecationWarning, stacklevel=2)


def finish(tree: ConfigDict, budget: Budget, path: str = "") -> ConfigDict:
    """Resolve `${env:...}`, drop `_delete_`, and set the key path of each node."""
    for key in tree:
        origin = origin_of(tree, key)
        if not isinstance(key, str) or key.startswith("__") or key in RESERVED:
            reason = f"{describe(key)} cannot be a top-level key; choose another name"
            raise config_error(reason, origin)
    if tree._meta_.origin is None and path:
        tree._meta_.origin = Origin(path)
    result: ConfigDict = _finish(tree, budget, ())
    rehome(result, (), result._meta_.origin)
    return result


def _finish(
    value: Any, budget: Budget, path: KeyPath, origin: Origin | None = None
) -> Any:
    if isinstance(value, ConfigDict):
        if DELETE in value and path:
            del value[DELETE]
        for key, child in value.items():
            if isinstance(child, (str, dict, list, tuple)):
                line = origin_of(value, key) or origin
                dict.__setitem__(value, key, _finish(child, budget, (*path, key), line))
    elif isinstance(value, ConfigList):
        for index, child in enumerate(value):
            made = _finish(child, budget, (*path, index), origin)
            list.__setitem__(value, index, made)
    elif type(value) is tuple:
        return tuple(
            _finish(child, budget, (*path, i), origin) for i, child in enumerate(value)
        )
    elif type(value) is str:
        try:
            return environment.resolve(value, budget.text)
        except ValueError as error:
            raise config_error(str(error), origin, [dotted(path)]) from None
    return value
