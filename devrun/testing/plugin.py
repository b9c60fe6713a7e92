"""`pytest --devrun-device NAME`: the conformance tests for one device, and a table.

Every pytest beside devrun loads this: it imports nothing before it is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

_SAID = {"passed": "holds", "skipped": "not tried", "failed": "FAILS", "error": "FAILS"}
"""In the order of the table: what is wrong is read last."""


def pytest_addoption(parser: pytest.Parser) -> None:
    add = parser.getgroup("devrun").addoption
    add("--devrun-device", metavar="NAME", help="test this device's adapter, only that")
    add("--devrun-emulate", action="store_true", help="on the device's emulator")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--devrun-device"):
        config.args[:] = [str(Path(__file__).with_name("suite.py"))]


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    if name := config.getoption("--devrun-device"):
        emulated = config.getoption("--devrun-emulate")
        for item in items:
            item.cls.device = {"type": name, "emulate": True} if emulated else name


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not (name := config.getoption("--devrun-device")):
        return
    counts = dict.fromkeys(_SAID.values(), 0)
    terminalreporter.section(f"what holds of device {name}")
    for outcome, word in _SAID.items():
        for report in terminalreporter.stats.get(outcome, ()):
            what = report.nodeid.rpartition("::test_")[2].replace("_", " ")
            why = f": {report.longrepr[2]}" if outcome == "skipped" else ""
            terminalreporter.write_line(f"{word:<10} {what}{why}")
            counts[word] += 1
    terminalreporter.write_line(", ".join(f"{k} {v}" for k, v in counts.items()))
