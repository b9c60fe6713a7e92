"""What each key of a config means, as the documents say it, and the JSON schema by
which editors complete and check configs, of the table that `check_config` goes by."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from devrun.config.numbers import MOST_THREADS, MOST_WORKERS
from devrun.config.schema import KEYS, USUAL_HELPERS, Section

_TABLES = {
    ("configs.md", "key"): "",
    ("configs.md", "loader option"): "data.",
    ("hooks.md", "key"): "optimizer_config.",
}
"""Page and head of each table of keys -> the section that they are in."""
_FRACTION = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
_FORMS: dict[str, dict[str, Any]] = {
    "text": {"type": "string"},
    "flag": {"type": "boolean"},
    "int": {"type": "integer"},
    "count": {"type": "integer", "minimum": 1},
    "size": {"type": "integer", "minimum": 0},
    "workers": {"type": "integer", "minimum": 0, "maximum": MOST_WORKERS},
    "threads": {"type": "integer", "minimum": 1, "maximum": MOST_THREADS},
    "seed": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    "limit": {"anyOf": [{"type": "integer", "minimum": 1}, _FRACTION]},
    "duration": {
        "type": ["number", "string"],
        "exclusiveMinimum": 0,
        "pattern": r"^(?=.)(\d+d)?(\d+h)?(\d+m)?(\d+s)?$",
    },
    "number": {"type": "number"},
    "positive": {"type": "number", "exclusiveMinimum": 0},
    "list": {"type": ["array", "object"]},  # {_append_: [...]}, {_merge_: [...]}
    "dict": {"type": "object"},
    "any": {},
    "target": {
        "type": "object",
        "additionalProperties": {"type": "number"},
        "minProperties": 1,
        "maxProperties": 1,
    },
    "workflow": {"type": "array", "items": {"type": "array"}},
}
"""Kind of a value -> its JSON schema."""


def all_keys(
    keys: Mapping[str, str | Section] = KEYS, section: str = ""
) -> Iterator[tuple[str, str | Section]]:
    """Each key with its dotted path, and its rule."""
    for name, rule in keys.items():
        yield section + name, rule
        if isinstance(rule, Section):
            yield from all_keys(rule.keys, f"{section}{name}.")


@lru_cache(maxsize=None)
def meanings() -> dict[str, str]:
    """Dotted key -> what it means, of the tables in the documents."""
    found: dict[str, str] = {}
    for page in ("configs.md", "hooks.md"):
        section: str | None = None
        head = True
        file = Path(__file__).parent / "data" / page
        for line in file.read_text(encoding="utf-8").splitlines():
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if not cells:
                section, head = None, True
            elif head:
                section, head = _TABLES.get((page, cells[0])), False
            elif section is not None:
                text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", cells[-1]).replace("`", "")
                for name in re.findall(r"`(\w+)`", cells[0]):
                    found[section + name] = text
    return found


def json_schema() -> dict[str, Any]:
    """The schema of a whole config (draft 7); a part may be in a file of its own."""
    schema = _form(Section(KEYS), "")
    ours = f"^(x-.*|_.*|{USUAL_HELPERS.pattern})$"
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "a config of devrun",
        **schema,
        "patternProperties": {ours: {}},
    }


def _form(rule: str | Section, path: str) -> dict[str, Any]:
    if isinstance(rule, str):
        forms = [_FORMS[kind] for kind in rule.rstrip("?").split("|")]
        forms += [{"type": "null"}] * rule.endswith("?")
        return forms[0] if len(forms) == 1 else {"anyOf": forms}
    inner = f"{path}." if path else ""
    properties = {name: _told(child, inner + name) for name, child in rule.keys.items()}
    known: dict[str, Any] = {
        "type": ["object", "null"] if rule.optional and path else "object",
        "properties": properties,
        "patternProperties": {"^_(delete|append)_$": {}},
        "additionalProperties": rule.open,
    }
    if not rule.types:
        return known
    foreign = {"type": {"not": {"enum": list(rule.types)}}}
    return {"anyOf": [known, {"required": ["type"], "properties": foreign}]}


def _told(rule: str | Section, path: str) -> dict[str, Any]:
    meaning = meanings().get(path)
    return {**({"description": meaning} if meaning else {}), **_form(rule, path)}
