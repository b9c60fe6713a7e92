"""Reading the documents: fenced blocks, tables and links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    *sorted(
        path.relative_to(ROOT).as_posix()
        for folder in ("benchmarks", "docs", "examples")
        for path in (ROOT / folder).rglob("*.md")
    ),
]
_FENCE = re.compile(r"^```([\w{}-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CELL = re.compile(r"(?<!\\)\|")


class Block(NamedTuple):
    """One fenced block; `line` is that of its first line, `mark` the comment above."""

    document: str
    line: int
    kind: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def text_of(document):
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document, kind=None, mark=None):
    """The fenced blocks of a document, of one kind or with one `<!-- mark -->`."""
    text = text_of(document)
    found = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()].rstrip().rpartition("\n")[2]
        comment = re.fullmatch(r"<!-- (.*) -->", before)
        block = Block(
            document,
            text.count("\n", 0, match.start(2)) + 1,
            match[1],
            comment[1] if comment else "",
            match[2],
        )
        if kind in (None, block.kind) and mark in (None, block.mark):
            found.append(block)
    return found


def all_blocks(kind):
    return [block for document in DOCUMENTS for block in blocks(document, kind)]


def table(document, first_header, second_header):
    """The rows of the table whose header begins with these two cells."""
    head = f"| {first_header} | {second_header} |"
    lines = text_of(document).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(head))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in _CELL.split(line)[1:-1]]
        rows.append([cell.replace("\\|", "|") for cell in cells])
    return rows


def items(document, heading):
    """The items of the list under a heading, each as one line."""
    text = text_of(document).partition(f"\n{heading}\n")[2]
    (part,) = re.findall(r"\A(?:(?!^#).*\n)*?((?:^(?:- |  ).*\n)+)", text, re.MULTILINE)
    found = re.split(r"^- ", part, flags=re.MULTILINE)[1:]
    return [" ".join(item.split()) for item in found]


def codes(cell):
    """What stands in backquotes in a table cell."""
    return re.findall(r"`([^`]+)`", cell)


def links(document):
    """Links and images to files of the repository: (path, anchor), either may be ''."""
    text = _FENCE.sub("", text_of(document))
    found = re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text)
    return [(path, anchor) for path, anchor in found if "://" not in path]


def anchors(document):
    """What a link to a heading of the document may name, as GitHub makes it."""
    text = _FENCE.sub("", text_of(document))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in plain}
