"""`Config`: a configuration file as one tree, with MMCV's names."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

from devrun.config import dump as writer
from devrun.config.imports import import_custom, search_folders
from devrun.config.limits import Budget, copied
from devrun.config.loader import (
    HELPERS,
    LIMITS,
    RESERVED,
    Loader,
    extension,
    finish,
    merge,
    nested,
    read_text,
)
from devrun.config.origin import describe, remember_secrets
from devrun.config.schema import KEYS
from devrun.config.tree import ConfigDict, rehome
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError
from devrun.files import disk_errors, replace_text
from devrun.place import COMMAND_LINE, Origin
from devrun.text import escape
from devrun.trust import may_run_code

_OWN = ("_cfg_dict", "_filename", "_text", "_helpers")


class Config:
    """One configuration; its keys are attributes and items.

    `Config.fromfile("resnet.py").model.backbone.depth`. A missing key raises
    MissingKeyError, which is an AttributeError and a KeyError.
    """

    def __init__(
        self,
        cfg_dict: dict[Any, Any] | None = None,
        cfg_text: str | None = None,
        filename: str | os.PathLike[str] | None = None,
    ) -> None:
        if cfg_dict is None:
            cfg_dict = {}
        if not isinstance(cfg_dict, dict):
            raise ConfigTypeError(f"cfg_dict must be a dict, not {describe(cfg_dict)}")
        for key in cfg_dict:
            if key in RESERVED:
                raise UnknownNameError(f"{key} is reserved; choose another key")
        tree = cfg_dict if isinstance(cfg_dict, ConfigDict) else ConfigDict(cfg_dict)
        if tree._meta_.path is None:
            rehome(tree, (), tree._meta_.origin)
        self._set("_cfg_dict", tree)
        if cfg_text is None:
            cfg_text = "" if filename is None else read_text(os.fspath(filename))
        self._set("_filename", None if filename is None else os.fspath(filename))
        self._set("_text", cfg_text)
        self._set("_helpers", frozenset())

    def _set(self, name: str, value: Any) -> None:
        if name == "_cfg_dict":
            remember_secrets(value)
        object.__setattr__(self, name, value)

    @staticmethod
    def fromfile(
        filename: str | os.PathLike[str],
        use_predefined_variables: bool = True,
        import_custom_modules: bool = True,
        *,
        trust: bool = False,
    ) -> Config:
        """The configuration in a .py, .json, .yaml or .yml file.

        A Python file is read, not run, unless `trust` or `--trust-config` was given
        to the process. `use_predefined_variables`
        replaces `{{ fileDirname }}` and its kin.

        Raises:
            MissingFileError: no such file (a FileNotFoundError too).
            ConfigError: anything else that is wrong, in one line.
        """
        path = os.path.expanduser(os.fspath(filename))
        loader = Loader(use_predefined_variables, trust or may_run_code())
        tree, text = loader.load(path)
        return _loaded(loader, tree, text, path, import_custom_modules)

    @staticmethod
    def fromstring(
        cfg_str: str,
        file_format: str,
        import_custom_modules: bool = True,
        *,
        trust: bool = False,
    ) -> Config:
        """The configuration in a text; `_base_` is relative to the current directory.

        Raises:
            ConfigError: an unknown `file_format`, or as `fromfile`.
        """
        if file_format not in LIMITS:
            accepted = ", ".join(LIMITS)
            given = describe(file_format)
            raise ConfigError(f"file_format must be one of {accepted}, not {given}")
        if "\0" in cfg_str or len(cfg_str) > LIMITS[file_format]:
            raise ConfigError("the text has a NUL character or is too large")
        loader = Loader(use_variables=False, trust=trust or may_run_code())
        path = f"<string>{file_format}"
        tree = loader.load_text(cfg_str, path)
        config = _loaded(loader, tree, cfg_str, path, import_custom_modules)
        config._set("_filename", None)
        return config

    @property
    def filename(self) -> str | None:
        name: str | None = self.__dict__["_filename"]
        return name

    @property
    def text(self) -> str:
        """The file as it was written, secrets included."""
        text: str = self.__dict__["_text"]
        return text

    @property
    def pretty_text(self) -> str:
        """The tree as Python that loads back equal; secrets are masked."""
        return writer.to_python(self._whole(), strict=False)

    def dump(
        self, file: str | os.PathLike[str] | None = None, *, follow: bool = True
    ) -> str | None:
        """Write the tree to `file`, in the format of its extension.

        Without a file the text is returned, in the format of `filename` (Python
        where there is none). Secrets are masked, `${env:...}` stays as written.
        `follow`: as of `devrun.files.replace_file`.

        Raises:
            ConfigError: an unknown extension, or a value with no text form.
            StorageError: the file cannot be written; one that was there is as it was.
        """
        if file is None:
            suffix = extension(self.filename) if self.filename else ".py"
            return writer.FORMATS[suffix](self._whole())
        path = os.fspath(file)
        text = writer.FORMATS[extension(path)](self._whole())
        with disk_errors(f"{escape(path)}: cannot be written"):
            replace_text(path, text, follow=follow)
        return None

    def merge_from_dict(
        self,
        options: dict[str, Any],
        allow_list_keys: bool = True,
        *,
        origin: Origin = COMMAND_LINE,
    ) -> None:
        """Set `{"a.b.0.c": value}`; digits index lists unless told otherwise.

        A dict given as a value goes into the dict it meets.

        Raises:
            UnknownNameError: a position beyond the end of a list.
            ConfigTypeError: a word indexes a list, or a dict meets another type.
        """
        budget = Budget()
        new = copied(nested(options, origin), budget, origin, any_leaf=True)
        tree = copy.deepcopy(self._cfg_dict)
        merge(new, tree, list_keys=allow_list_keys)
        self._set("_cfg_dict", finish(tree, budget))

    def _whole(self) -> dict[Any, Any]:
        """The tree as it is written: with the names of its helper variables."""
        names = [key for key in self._cfg_dict if key in self._helpers - KEYS.keys()]
        return {HELPERS: names, **self._cfg_dict} if names else dict(self._cfg_dict)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in _OWN:
            raise AttributeError(name)
        return getattr(self._cfg_dict, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in RESERVED:
            raise UnknownNameError(f"{name} is reserved; choose another key")
        if name == "_cfg_dict":
            self._set(name, value)
        else:
            self._cfg_dict[name] = value

    def __getitem__(self, name: Any) -> Any:
        return self._cfg_dict[name]

    def __setitem__(self, name: Any, value: Any) -> None:
        setattr(self, name, value)

    def __delitem__(self, name: Any) -> None:
        del self._cfg_dict[name]

    def __contains__(self, name: object) -> bool:
        return name in self._cfg_dict

    def __len__(self) -> int:
        return len(self._cfg_dict)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._cfg_dict)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Config):
            return bool(self._cfg_dict == other._cfg_dict)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Config (path: {self.filename}): {self._cfg_dict!r}"

    def __copy__(self) -> Config:
        return self._with(self._cfg_dict.copy())

    def _with(self, tree: ConfigDict) -> Config:
        other = Config.__new__(Config)
        other.__dict__.update(self.__dict__, _cfg_dict=tree)
        return other


def _loaded(
    loader: Loader, tree: ConfigDict, text: str, path: str, import_modules: bool
) -> Config:
    config = Config(tree, text, path)
    config._set("_helpers", frozenset(loader.helpers))
    if import_modules:
        import_custom(tree, search_folders(path) if loader.trust else ())
    return config
