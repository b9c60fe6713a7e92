"""Layouts: what a tensor is called where, read and written by the tables."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from devrun.checkpoint.layout_convnets import CONVNETS
from devrun.checkpoint.layout_forms import FORMS, SAME, Form
from devrun.checkpoint.layout_tables import TABLES

_BODIES = ("backbone.", "transformer.", "vit.", "resnet.", "convnext.")
"""What stands before the keys of the body of a model, which has its own files too."""


class Piece(NamedTuple):
    """A tensor under its name in a layout, and what of ours it is."""

    key: str
    part: int = 0
    parts: int = 1
    form: Form = SAME


@dataclass(frozen=True, eq=False)
class Layout:
    """The names that `names` give the tensors of `model`."""

    model: str
    names: tuple[str, ...]
    table: Mapping[str, str]

    @functools.cached_property
    def rows(self) -> list[tuple[_Template, _Template]]:
        return [(_Template(ours), _Template(his)) for ours, his in self.table.items()]

    def write(self, name: str) -> list[Piece]:
        """The tensors of this layout that ours of that name is; none if it has none."""
        for ours, theirs in self.rows:
            if (found := ours.match(name)) is not None:
                numbers, _, rest = found
                return [
                    Piece(
                        theirs.fill(numbers, part, rest),
                        part,
                        theirs.parts,
                        theirs.form,
                    )
                    for part in range(theirs.parts)
                ]
        return []


def read(key: str) -> dict[Layout, tuple[str, Piece]]:
    """Our name for what is `key` in each layout, and which piece of it that is."""
    result = {}
    for _, layout, ours, theirs in sorted(_candidates(key), key=itemgetter(0)):
        if layout not in result and (found := theirs.match(key)) is not None:
            numbers, alternative, rest = found
            piece = Piece(key, alternative, theirs.parts, theirs.form)
            result[layout] = ours.fill(numbers, 0, rest), piece
    return result


_Row = tuple[int, Layout, "_Template", "_Template"]


def _candidates(key: str) -> Iterator[_Row]:
    """The rows that begin as `key`, whole parts compared."""
    yield from _index()[""]
    at = 0
    while (at := key.find(".", at) + 1) and (
        rows := _index().get(key[:at])
    ) is not None:
        yield from rows


@functools.cache
def _index() -> dict[str, list[_Row]]:
    """All rows by what stands before their first number, up to its last dot.

    Every beginning of one that is there is there too, if only with no rows.
    """
    found: dict[str, list[_Row]] = {"": []}
    number = 0
    for layout in LAYOUTS:
        for ours, theirs in layout.rows:
            parts = theirs.pieces[0].split(".")[:-1]
            for count in range(1, len(parts) + 1):
                rows = found.setdefault(".".join(parts[:count]) + ".", [])
            (rows if parts else found[""]).append((number, layout, ours, theirs))
            number += 1
    return found


class _Template:
    """One side of a row."""

    def __init__(self, text: str) -> None:
        text, _, form = text.partition("@")
        self.form = FORMS[form]
        text, deep = text.removesuffix("*"), text.endswith("*")
        self.pieces = re.split(r"(\{[^}]*\})", text)
        slots = [piece for piece in self.pieces if piece.startswith("{")]
        choices = [slot[1:-1].split("|") for slot in slots if slot != "{}"]
        self.choices = choices[0] if choices else [""]
        pattern = "".join(
            (f"(?P<part>{piece[1:-1]})" if "|" in piece else r"(\d+)")
            if piece.startswith("{")
            else re.escape(piece)
            for piece in self.pieces
        )
        rest = "(?P<rest>.+)" if deep else "(?P<rest>[^.]+)"
        self._regex = re.compile(pattern + (rest if text.endswith(".") else ""))

    @property
    def parts(self) -> int:
        return len(self.choices)

    def match(self, key: str) -> tuple[list[str], int, str] | None:
        """(numbers, which of the alternatives, the rest) of a key of this form."""
        found = None
        if key.startswith(self.pieces[0]):  # far quicker than the pattern
            found = self._regex.fullmatch(key)
        if found is None:
            return None
        named = found.groupdict()
        taken = {self._regex.groupindex[name] for name in named}
        numbers = [text for at, text in enumerate(found.groups(), 1) if at not in taken]
        part = self.choices.index(named["part"]) if "part" in named else 0
        return numbers, part, named.get("rest", "")

    def fill(self, numbers: list[str], part: int, rest: str) -> str:
        """The key of this form with these numbers."""
        given = iter(numbers)
        return (
            "".join(
                (self.choices[part] if "|" in piece else next(given))
                if piece.startswith("{")
                else piece
                for piece in self.pieces
            )
            + rest
        )


def _layouts() -> Iterator[Layout]:
    for model, (names, tables) in {**TABLES, **CONVNETS}.items():
        ours = dict.fromkeys(name for table in tables.values() for name in table)
        yield Layout(model, names, {name: name for name in ours})
        for name, table in tables.items():
            yield Layout(model, (name,), table)
            body = {
                mine: theirs.partition(".")[2]
                for mine, theirs in table.items()
                if theirs.startswith(_BODIES)
            }
            if body:
                yield Layout(model, (f"{name} without head",), body)


LAYOUTS = tuple(_layouts())
"""Of each model ours first."""
