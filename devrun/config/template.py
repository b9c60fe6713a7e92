"""`{{ fileDirname }}`, `{{ _base_.a.b }}` and `${env:NAME}` in a configuration.

Each of the first two is replaced, before the text is parsed, by a marker: a word that
every syntax accepts as a name and inside a string. The reader's values are searched for
markers afterwards, so that no value is pasted into the source and each keeps its type.

`${env:NAME}` and `${env:NAME:default}` are the variable's text; what was written is
kept beside it, and that is what a dump shows.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from typing import Any

from devrun.config.limits import Budget
from devrun.config.origin import config_error, describe, hint_for, shown_value
from devrun.place import Origin
from devrun.python38 import unprefixed
from devrun.redact import Reference, remember

MARKER = re.compile(r"_devrun_ref_[0-9a-f]{16}_(\d{1,6})_")
_REFERENCE = re.compile(
    r"\{\{[ \t]{0,16}(_base_\.[\w.]{1,256}|fileDirname|fileBasenameNoExtension"
    r"|fileBasename|fileExtname)[ \t]{0,16}\}\}"
)
_VARIABLE = re.compile(
    r"\$\{env:(?P<name>[A-Za-z_]\w{0,255})(?::(?P<default>[^{}]{0,4096}))?\}",
    re.ASCII,
)


class Template:
    """The text of one file with markers, and what each marker stands for.

    Without `file_variables` only what begins with `_base_.` is replaced.
    """

    def __init__(
        self, source: str, file: str, budget: Budget, *, file_variables: bool = True
    ) -> None:
        self.file = file
        self._budget = budget
        self._file_variables = file_variables
        self.base_names: set[str] = set()
        self._found: list[tuple[str, Origin]] = []
        # No text holds a word made from its own digest.
        digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
        self._tag = f"_devrun_ref_{digest[:16]}_"
        self._marker = re.compile(re.escape(self._tag) + r"(\d{1,6})_")
        self._line, self._upto = 1, 0
        self.text = _REFERENCE.sub(self._mark, source)

    def _mark(self, match: re.Match[str]) -> str:
        name = match[1]
        if not (name.startswith("_base_.") or self._file_variables):
            return match[0]
        self._line += match.string.count("\n", self._upto, match.start())
        self._upto = match.start()
        self._found.append((name, Origin(self.file, self._line)))
        if name.startswith("_base_."):
            self.base_names.add(name.split(".")[1])
        return f"{self._tag}{len(self._found) - 1}_"

    @property
    def markers(self) -> list[str]:
        return [f"{self._tag}{number}_" for number in range(len(self._found))]

    def fill(self, text: str, base: Callable[[str, Origin], Any]) -> Any:
        """`text` with its markers replaced; one that is all of it keeps its type.

        `base(dotted, origin)` gives the value that `{{ _base_.dotted }}` names.
        """
        if self._tag not in text:
            return text
        whole = self._marker.fullmatch(text)
        if whole:
            return self._value(whole, base)

        def word(match: re.Match[str]) -> str:
            value = self._value(match, base)
            if isinstance(value, (dict, list, tuple)):
                name, origin = self._found[int(match[1])]
                raise config_error(
                    f"{{{{ {name} }}}} is {describe(value)}, which cannot stand "
                    "inside a text; let it be the whole value",
                    origin,
                )
            return self._budget.made(str(value))

        return self._budget.made(self._marker.sub(word, text))

    def _value(self, match: re.Match[str], base: Callable[[str, Origin], Any]) -> Any:
        number = int(match[1])
        if number >= len(self._found):
            return match[0]
        name, origin = self._found[number]
        if name.startswith("_base_."):
            return base(unprefixed(name, "_base_."), origin)
        full = os.path.abspath(os.path.expanduser(self.file))
        base_name = os.path.basename(full)
        stem, suffix = os.path.splitext(base_name)
        return {
            "fileDirname": os.path.dirname(full).replace("\\", "/"),
            "fileBasename": base_name,
            "fileBasenameNoExtension": stem,
            "fileExtname": suffix,
        }[name]


def look_up(tree: Any, path: str, origin: Origin) -> Any:
    """The value at the dotted `path` of the merged bases.

    Raises:
        ConfigError: no `_base_`, or nothing at that path.
    """
    shown = f"{{{{ _base_.{path} }}}}"
    if tree is None:
        raise config_error(
            f"{shown} is used, but this file has no `_base_`; add one or write "
            "the value",
            origin,
        )
    value = tree
    for part in filter(None, path.split(".")):
        inside: Any = value if isinstance(value, (dict, list, tuple)) else {}
        by_number = part.isdecimal() and part not in inside
        try:
            value = inside[int(part[:9]) if by_number else part]
        except (LookupError, TypeError):
            known = value if isinstance(value, dict) else ()
            held = shown_value(value, path.split("."))
            hint = hint_for(part, known) or f"that is {held}"
            reason = f"{shown}: the bases have no {part!r}; {hint}"
            raise config_error(reason, origin) from None
    return value


# The environment ----------------------------------------------------------------


class EnvStr(Reference, str):
    pass


def with_environment(text: str, pay: Callable[[int], None]) -> str | Reference:
    """`text` with its references replaced; the same object when it has none.

    `pay(chars)` is called with the length of each variable before it is used.

    Raises:
        ValueError: a variable that is not set, or a wrong form; the message has no
            place yet.
    """
    if "${env" not in text:
        return text
    if "${env" in _VARIABLE.sub("", text):
        raise ValueError(
            f"{describe(text)} is no environment reference; write ${{env:NAME}} or "
            "${env:NAME:default}"
        )

    def read(match: re.Match[str]) -> str:
        name = match["name"]
        found = os.environ.get(name, match["default"])
        if found is None:
            raise ValueError(
                f"the environment variable {name} is not set; set it, or give a "
                f"default as ${{env:{name}:text}}"
            )
        if any("\ud800" <= char <= "\udfff" for char in found):
            raise ValueError(f"the environment variable {name} is not UTF-8 text")
        if name in os.environ:  # a default is in the config for all to read
            remember(found, f"${{env:{name}}}")
        pay(len(found))
        return found

    value = EnvStr(_VARIABLE.sub(read, text))
    value.template = text
    return value
