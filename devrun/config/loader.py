"""From a file to one tree: its syntax, its `_base_` files, templates, environment."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from devrun.config.limits import Budget, check_depth, copied
from devrun.config.origin import config_error, describe, shown_value
from devrun.config.python_reader import Reader
from devrun.config.template import Template, look_up, with_environment
from devrun.config.tree import (
    ConfigDict,
    ConfigList,
    adopt,
    children,
    origin_of,
    place,
    rehome,
)
from devrun.config.yaml_reader import read_json, read_yaml
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError
from devrun.files import open_regular
from devrun.place import KeyPath, Origin, Place

BASE = "_base_"
DELETE = "_delete_"
APPEND = "_append_"
MERGE = "_merge_"
DEPRECATION = "_deprecation_"
HELPERS = "_helpers_"
RESERVED = ("filename", "text", "pretty_text")
FILE_STEPS = 3000
"""What a file costs: a configuration of a hundred files is refused."""
LIMITS = {".py": 256 * 1024, ".json": 1 << 20, ".yaml": 1 << 20, ".yml": 1 << 20}
"""Accepted extensions and the bytes a file of each may have."""


# Files: regular ones of sane size, in UTF-8, and no other ------------------------


class MissingFileError(ConfigError, FileNotFoundError):
    """No such configuration file."""


def extension(path: str) -> str:
    suffix = os.path.splitext(path)[1]
    if suffix not in LIMITS:
        given = f"{suffix!r}" if suffix else "no extension"
        raise config_error(
            f"a configuration is a .py, .json, .yaml or .yml file, not {given}",
            Origin(path),
        )
    return suffix


def read_text(path: str) -> str:
    """The text of the file at `path`, without a byte order mark.

    Raises:
        MissingFileError: nothing is there.
        ConfigError: not a regular file, not readable, too large, not UTF-8.
    """
    limit, here = LIMITS[extension(path)], Origin(path)
    try:
        with open_regular(path) as stream:
            data = stream.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        reason = "no such configuration file; check the path"
        raise MissingFileError(reason, place=Place(here)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise config_error(f"cannot be read: {reason}", here) from None
    if len(data) > limit:
        raise config_error(
            f"larger than {limit // 1024} KiB; a configuration names data, "
            "it does not hold it",
            here,
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = f"not UTF-8 (byte 0x{data[error.start]:02x}); save the file as UTF-8"
        raise config_error(reason, Origin(path, line)) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise config_error("a NUL byte; save it as UTF-8", Origin(path, line))
    return text


# Trees --------------------------------------------------------------------------


@dataclass
class Loader:
    """Loads one configuration and the files it is based on.

    `helpers` are the variables that some file reads itself.
    """

    use_variables: bool = True
    trust: bool = False
    helpers: set[str] = field(default_factory=set)
    budget: Budget = field(default_factory=Budget)

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
        self.budget.charge(FILE_STEPS + (len(text) >> 5))
        template = Template(text, path, self.budget, file_variables=self.use_variables)
        source = _Source(self, template, (*chain, os.path.realpath(path)))
        own: ConfigDict = source.read(extension(path))
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

    def copy(
        self,
        value: Any,
        origin: Origin | None = None,
        fill: Callable[[str], Any] = lambda text: text,
    ) -> Any:
        return copied(value, self.budget, origin, any_leaf=self.trust, fill=fill)


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

    def read(self, suffix: str) -> Any:
        text, file = self._template.text, self._template.file
        loader, budget = self._loader, self._loader.budget
        loader.helpers |= self._template.base_names
        if suffix == ".py" and not loader.trust:
            reader = Reader(file, budget, self._fill, self._live, self._load_bases)
            raw, names = reader.read(text)
            loader.helpers |= names
            if self._opened and self.bases is not None:
                self.bases = loader.copy(self.bases)
            return loader.copy(raw)
        if suffix == ".py":
            from devrun.config.trusted import run_python  # the only way to `exec`

            raw, names = run_python(text, file, budget, self._template.markers)
            loader.helpers |= names
        elif suffix == ".json":
            raw = read_json(text, file, budget)
        else:
            raw = read_yaml(text, file, budget)
        if BASE in raw:
            origin = origin_of(raw, BASE) or Origin(file)
            self._load_bases(loader.copy(raw.pop(BASE), origin, self._fill), origin)
        return loader.copy(raw, fill=self._fill)

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
    if _extends(value):  # to nothing
        value = _extended(None, value, path, origin)
    if type(value) is str:
        try:
            return with_environment(value, budget.room)
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


# Merging: a dict goes into a dict, anything else replaces -------------------------


def merge(
    new: ConfigDict, base: ConfigDict, path: KeyPath = (), *, list_keys: bool = False
) -> None:
    """Put `new` into `base`, in place; `_delete_=True` in a dict drops what it meets,
    `_append_=[...]` adds to the list that it meets, and `_merge_=[...]` goes into its
    items of the same `type`.

    With `list_keys`, digits in `new` are the positions of a list in `base`.

    Raises:
        ConfigTypeError: a dict meets something else; a word indexes a list.
        UnknownNameError: a position beyond the end of a list.
    """
    for key, value in new.items():
        if key == DELETE:
            continue
        origin, here = origin_of(new, key), (*path, key)
        if key not in base and isinstance(key, str) and key.isdecimal():
            key = int(key) if int(key) in base else key
        old = dict.get(base, key)
        if not isinstance(value, ConfigDict):
            place(base, key, value, origin)
        elif _extends(value):
            place(base, key, _extended(old, value, here, origin), origin)
        elif key not in base or (old is None and list_keys):
            value.pop(DELETE, None)
            place(base, key, value, origin)
        elif _deletes(value, here):
            del value[DELETE]
            place(base, key, value, origin)
        elif isinstance(old, ConfigDict):
            merge(value, old, here, list_keys=list_keys)
        elif isinstance(old, (list, tuple)) and list_keys:
            made = _merged_list(value, old, here, origin)
            place(base, key, made, origin_of(base, key))
        else:
            first = origin_of(base, key)
            raise config_error(
                f"a dict cannot be merged into {shown_value(old, here)}"
                + (f" ({first})" if first else "")
                + f"; add {DELETE}=True to the dict to replace it",
                origin,
                here,
                ConfigTypeError,
            )


def _extends(value: Any) -> bool:
    return isinstance(value, ConfigDict) and (APPEND in value or MERGE in value)


def _extended(old: Any, value: ConfigDict, path: KeyPath, origin: Origin | None) -> Any:
    """The list (or tuple, or None) `old` with the items of `_append_` or `_merge_`."""
    name = APPEND if APPEND in value else MERGE
    more, path = value[name], (*path, name)
    if len(value) > 1 or not isinstance(more, (list, tuple)):
        given = describe(value if len(value) > 1 else more)
        reason = f"takes a list, and no other keys beside it, not {given}"
        raise config_error(reason, origin, path)
    if not isinstance(old, (list, tuple, type(None))):
        reason = f"adds to a list, not to {shown_value(old, path)}"
        raise config_error(reason, origin, path, ConfigTypeError)
    items = [*(old or ())]
    for item in more:
        same = _same_type(items, item, path, origin) if name == MERGE else []
        if same:
            merge(item, same[0], path)
        else:
            items.append(item)
    return tuple(items) if isinstance(old, tuple) else ConfigList(items)


def _same_type(
    items: list[Any], item: Any, path: KeyPath, origin: Origin | None
) -> list[ConfigDict]:
    """The one of `items` that has the `type` of `item`, if there is one."""
    if not isinstance(item, ConfigDict) or "type" not in item:
        reason = f"takes dicts with a `type`, not {describe(item)}"
        raise config_error(reason, origin, path)
    same = [
        one
        for one in items
        if isinstance(one, ConfigDict) and one.get("type") == item["type"]
    ]
    if len(same) > 1:
        reason = f"{len(same)} items have the type {describe(item['type'])}"
        hint = "name the position, as in KEY.0.ARGUMENT"
        raise config_error(f"{reason}: {hint}", origin, path)
    return same


def _merged_list(
    value: ConfigDict, old: Any, path: KeyPath, origin: Origin | None
) -> Any:
    """The list (or tuple) `old` with what `value` has for some of its positions."""
    items = ConfigDict(enumerate(old))
    for key in value:
        here = (*path, key)
        if not (isinstance(key, str) and key.isdecimal() and len(key) < 10):
            reason = f"{describe(old)} is indexed by a number, not by {describe(key)}"
            raise config_error(reason, origin, here, ConfigTypeError)
        if int(key) not in items:
            reason = f"there is no position {int(key)} in {describe(old)}; the last is "
            raise config_error(
                f"{reason}{len(items) - 1}", origin, here, UnknownNameError
            )
    merge(value, items, path, list_keys=True)
    if isinstance(old, tuple):
        return tuple(items.values())
    result = ConfigList(items.values())
    if isinstance(old, ConfigList):
        result._meta_ = old._meta_.copy()
    return result


def nested(options: dict[str, Any], origin: Origin) -> ConfigDict:
    """`{"a.b.c": value}` as a tree whose every key comes from `origin`.

    Raises:
        ConfigError: an empty part, or a key that is given both a value and keys.
    """
    root = ConfigDict()
    root._meta_.origin = origin
    for full, value in options.items():
        parts = str(full).split(".")
        if not all(parts):
            reason = "a key is words with single dots between them, as in a.b.0.c"
            raise config_error(reason, origin, [full])
        node = root
        for part in parts[:-1]:
            if part not in node:
                place(node, part, ConfigDict(), origin)
                node[part]._meta_.origin = origin
            node = node[part]
            if not isinstance(node, ConfigDict):
                reason = f"{part} is also given the value {shown_value(node, parts)}"
                raise config_error(reason, origin, [full])
        place(node, parts[-1], adopt(value), origin)
    return root


def _deletes(value: ConfigDict, path: KeyPath) -> bool:
    wish = value.get(DELETE, False)
    if not isinstance(wish, bool):
        reason = f"takes True or False, not {describe(wish)}"
        raise config_error(reason, origin_of(value, DELETE), (*path, DELETE))
    return wish
