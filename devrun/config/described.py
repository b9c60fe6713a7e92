"""What each key of a config means, as the documents say it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from devrun.config.schema import KEYS, Section

_TABLES = {
    ("configs.md", "key"): "",
    ("configs.md", "loader option"): "data.",
    ("hooks.md", "key"): "optimizer_config.",
}
"""Page and head of each table of keys -> the section that they are in."""


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
