"""Runs that are killed, starved and lied to, and the one that was left in peace."""

import time

import pytest

from tests.faults import harness


@pytest.fixture(scope="session", autouse=True)
def server():
    """The process that all runs are forked from."""
    with harness.importable():
        assert harness.run(int) == (0, "")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """`undisturbed(**changes)`: where a run of that config went through to its end."""
    known = {}

    def run(**changes):
        key = repr(changes)
        if key not in known:
            place = tmp_path_factory.mktemp("undisturbed")
            harness.write_config(place, **changes)
            start = time.monotonic()
            words = harness.train(place)
            status, said = harness.run(harness.command, *words, output=place / "out")
            assert status == 0, said
            known[key] = place, time.monotonic() - start
        place, run.seconds = known[key]
        return place

    return run


@pytest.fixture
def figures(record_property):
    """`figures(fault, text)`: what a test has counted, for the end of the output."""
    return lambda fault, text: record_property("figure", f"{fault}: {text}")


def pytest_terminal_summary(terminalreporter):
    lines = [
        text
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for name, text in report.user_properties
        if name == "figure"
    ]
    if lines:
        terminalreporter.section("faults")
        for line in sorted(lines, key=lambda line: int(line[1:].partition(":")[0])):
            terminalreporter.write_line(line)
