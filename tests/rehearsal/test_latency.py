"""`devrun test --latency`: throughput against latency."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command import command


@pytest.fixture
def swept(trained, tmp_path, monkeypatch, capsys):
    """`swept(*words)`: status, output and errors of a sweep of a trained run."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained(), "run")

    def sweep(*words):
        first = ("test", "run/config.yaml", "run", "--split", "val")
        return command(capsys, *first, *words)

    return sweep


def table(out):
    lines = [line.split() for line in out.splitlines()]
    return [line for line in lines if line and line[0].isdigit()]


def test_the_table_and_the_file_have_times(swept):
    words = ("--latency", "1", "4", "--device", "cpu", "--out", "run/latency.json")
    status, out, err = swept(*words)
    assert status == 0, err
    rows = table(out)
    assert [row[0] for row in rows] == ["1", "4"]
    for _, per_second, p50, p99, *_ in rows:
        assert float(per_second) > 0
        assert 0 < float(p50) <= float(p99)
    assert sum(row[-1] == "knee" for row in rows) == 1
    found = json.loads(Path("run/latency.json").read_text())["results"]
    assert [point["batch"] for point in found["latency"]] == [1, 4]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--latency", "0", "--device", "cpu"), "takes sizes of 1 or more, got 0"),
        (("--latency", "--device", "ipu", "--emulate"), "ipu is emulated here"),
    ],
)
def test_what_cannot_be_swept_is_one_line(words, what, swept):
    status, _, err = swept(*words)
    assert status == 2
    assert what in err
