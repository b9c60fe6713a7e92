"""`{{ fileDirname }}` and `{{ _base_.a.b }}` in the text of a configuration.

Each is replaced, before the text is parsed, by a marker: a word that every syntax
accepts as a name and inside a string. The reader's values are searched for markers
afterwards, so that no value is ever pasted into the source and each keeps its type.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from typing import Any

from devrun.config.limits import Budget
from devrun.config.origin import config_error, describe, hint_for
from devrun.config.redact import shown_value
from devrun.place import Origin

MARKER = re.compile(r"_devrun_ref_[0-9a-f]{16}_(\d{1,6})_")
_FILE_VARIABLES = "fileDirname|fileBasenameNoExtension|fileBasename|fileExtname"


def file_variables(path: str) -> dict[str, str]:
    full = os.path.abspath(os.path.expanduser(path))
    base = os.path.basename(full)
    stem, suffix = os.path.splitext(base)
    return {
        "fileDirname": os.path.dirname(full).replace("\\", "/"),
        "fileBasename": base,
        "fileBasenameNoExtension": stem,
        "fileExtname": suffix,
    }


class Template:
    """The text of one file with markers, and what each marker stands for."""

    def __init__(
        self,
        source: str,
        file: str,
        variables: dict[str, str] | None,
        budget: Budget,
    ) -> None:
        self.file = file
        self._budget = budget
        self.base_names: set[str] = set()
        self._variables = variables or {}
        self._found: list[tuple[str, Origin]] = []
        # No text holds a word made from its own digest.
        digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()
        self._tag = f"_devrun_ref_{digest[:16]}_"
        names = r"_base_\.[\w.]{1,256}" + (f"|{_FILE_VARIABLES}" if variables else "")
        pattern = re.compile(r"\{\{[ \t]{0,16}(" + names + r")[ \t]{0,16}\}\}")
        self._line, self._upto = 1, 0
        self.text = pattern.sub(self._mark, source)
        self._marker = re.compile(re.escape(self._tag) + r"(\d{1,6})_")

    def _mark(self, match: re.Match[str]) -> str:
        self._line += match.string.count("\n", self._upto, match.start())
        self._upto = match.start()
        self._found.append((match[1], Origin(self.file, self._line)))
        if match[1].startswith("_base_."):
            self.base_names.add(match[1].split(".")[1])
        return f"{self._tag}{len(self._found) - 1}_"

    def is_marker(self, word: str) -> bool:
        return bool(self._marker.fullmatch(word))

    @property
    def markers(self) -> list[str]:
        return [f"{self._tag}{number}_" for number in range(len(self._found))]

    def fill(self, text: str, base: Callable[[str, Origin], Any]) -> Any:
        """`text` with its markers replaced; one that is all of it keeps its type.

        `base(dotted, origin)` gives the value that `{{ _base_.dotted }}` names.
        """
        if not self._found or self._tag not in text:
            return text
        whole = self._marker.fullmatch(text)
        if whole:
            return self._value(whole, base)
        words = [self._word(match, base) for match in self._marker.finditer(text)]
        self._budget.text(len(text) + sum(map(len, words)))
        given = iter(words)
        return self._marker.sub(lambda _: next(given), text)

    def _word(self, match: re.Match[str], base: Callable[[str, Origin], Any]) -> str:
        value = self._value(match, base)
        if isinstance(value, (dict, list, tuple, set)):
            name, origin = self._found[int(match[1])]
            raise config_error(
                f"{{{{ {name} }}}} is {describe(value)}, which cannot stand "
                "inside a text; let it be the whole value",
                origin,
            )
        word = str(value)
        self._budget.text(len(word))
        return word

    def _value(self, match: re.Match[str], base: Callable[[str, Origin], Any]) -> Any:
        number = int(match[1])
        if number >= len(self._found):
            return match[0]
        name, origin = self._found[number]
        if not name.startswith("_base_."):
            return self._variables[name]
        return base(name.removeprefix("_base_."), origin)


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
    for part in path.split("."):
        key: Any = part
        if isinstance(value, (list, tuple)) and part.isdecimal():
            if int(part) < len(value):
                value = value[int(part)]
                continue
        elif isinstance(value, dict):
            if part not in value and part.isdecimal() and int(part) in value:
                key = int(part)
            if key in value:
                value = value[key]
                continue
        known = value if isinstance(value, dict) else ()
        held = shown_value(value, path.split("."))
        hint = hint_for(part, known) or f"that is {held}"
        raise config_error(f"{shown}: the bases have no {part!r}; {hint}", origin)
    return value
