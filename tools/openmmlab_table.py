"""The tables of benchmarks/OPENMMLAB.md from the results of the survey."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

DEVICES = {
    "cpu": ("--device", "cpu"),
    "ipu": ("--device", "ipu", "--emulate"),
    "hpu": ("--device", "hpu", "--emulate"),
}
STAGES = ("build", *DEVICES)


def family(name: str) -> str:
    parts = name.split("/")
    return "/".join(parts[:2]) if parts[0] == "_base_" else parts[0]


def table(
    configs: dict[str, Path], results: dict[tuple[str, str], dict[str, Any]]
) -> str:
    """Counts of each family, how they came about, and what does not do all of it."""
    lines = ["| family | files | " + " | ".join(STAGES) + " |"]
    lines.append("|---" * (2 + len(STAGES)) + "|")
    groups: dict[str, list[str]] = {}
    for name in configs:
        groups.setdefault(family(name), []).append(name)
    for title, names in [*groups.items(), ("all", list(configs))]:
        cells = [title, str(len(names))]
        for stage in STAGES:
            tried = [r for n in names if (r := results.get((stage, n)))]
            cells.append(f"{sum(r['good'] for r in tried)} of {len(tried)}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *ways(results, len(configs)), "", *failures(results)])


def ways(results: dict[tuple[str, str], dict[str, Any]], total: int) -> list[str]:
    """How the outcomes of each stage came about, and of which commits they are."""
    head = ("run themselves", "of these at their own size", "as another", "by sections")
    lines = [f"| | {' | '.join(head)} | not tried |", "|---" * 6 + "|"]
    for stage in STAGES:
        found = [line for (at, _), line in results.items() if at == stage]
        own = [line for line in found if "by" not in line]
        whole = sum(line.get("size") is None for line in own)
        parts = sum(line.get("by") == "sections" for line in found)
        counts = [len(own), whole, len(found) - len(own) - parts, parts]
        counts.append(total - len(found))
        lines.append(f"| {stage} | " + " | ".join(map(str, counts)) + " |")
    commits = Counter(line.get("commit", "unknown") for line in results.values())
    said = ", ".join(f"{count} of {name}" for name, count in commits.most_common())
    return [*lines, "", f"Outcomes by commit: {said}."]


def failures(results: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """Each config that does not do all of it, with the reason on each device."""
    lines = ["| config | on | why not |", "|---|---|---|"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for (stage, name), found in sorted(results.items(), key=lambda item: item[0][::-1]):
        if not found["good"]:
            reason = re.sub(r"/\S*/\.mim/configs/", "", found["reason"])
            reason = re.sub(r"/\S*/(mmcls|mmcv)/", r"\1/", reason)
            reason = re.sub(r"/\S*\.\.\.\(\d+ characters\)", "...", reason)
            reason = re.sub(r"/\S*/made.py|\(traceback: \S*", "", reason)
            reason = re.sub(r"[|<>]", "/", reason.replace("devrun: error: ", ""))
            reasons.setdefault((name, reason.strip()), []).append(stage)
    for (name, reason), stages in reasons.items():
        lines.append(f"| {name} | {', '.join(stages)} | {reason} |")
    return lines


def parity_table(results: Path) -> str:
    """The largest relative difference of each config."""
    lines = ["| config | largest relative difference |", "|---|---|"]
    for line in results.read_text("utf-8").splitlines():
        found = json.loads(line)
        lines.append(f"| {found['config']} | {found['difference']:.1e} |")
    return "\n".join(lines)


def insert(name: str, text: str) -> None:
    """Replace the part of the page between the marks of `name`."""
    page = Path(__file__).resolve().parents[1] / "benchmarks" / "OPENMMLAB.md"
    old = page.read_text("utf-8")
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head, _, rest = old.partition(begin)
    tail = rest.partition(end)[2]
    page.write_text(f"{head}{begin}\n{text}\n{end}{tail}", "utf-8")


def plain(node: Any) -> Any:
    """Dicts, lists and tuples themselves, as --cfg-options reads them."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return (tuple if isinstance(node, tuple) else list)(map(plain, node))
    return node
