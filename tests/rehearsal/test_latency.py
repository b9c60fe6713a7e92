"""`devrun test --latency`: throughput against latency, and its chart in the report."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support import zygote
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


def test_the_table_has_times_and_the_report_a_chart(swept, capsys):
    words = ("--latency", "1", "4", "--device", "cpu", "--out", "run/latency.json")
    status, out, err = swept(*words)
    assert status == 0, err
    rows = table(out)
    assert [row[0] for row in rows] == ["1", "4"]
    for _, per_second, p50, p99, *_ in rows:
        assert float(per_second) > 0
        assert 0 < float(p50) <= float(p99)
    assert sum(row[-1] == "knee" for row in rows) == 1
    status, out, err = command(capsys, "report", "run", "--json")
    (found,) = json.loads(out)["runs"][0]["latency"]
    assert [point["batch"] for point in found["points"]] == [1, 4]
    assert command(capsys, "report", "run", "-o", "report.html")[0] == 0
    page = Path("report.html").read_text()
    assert "Latency by throughput" in page
    assert page.count("<polyline points=") == 2


@pytest.mark.parametrize(("device", "graphs"), [("hpu", "0"), ("ipu", "1")])
def test_the_emulators_count_graphs_and_transfers(device, graphs, swept):
    """Two tensors of a batch go there, the predictions come back; no times."""
    words = "-m devrun test run/config.yaml run --split val --latency 2 4 --emulate"
    env = {key: v for key, v in os.environ.items() if not key.startswith("PT_")}
    # in a process of its own: an emulated Gaudi changes torch
    done = zygote.run(
        [*words.split(), "--device", device], {**env, "PYTHONPATH": str(zygote.ROOT)}
    )
    assert done.returncode == 0, done.stderr
    assert table(done.stdout) == [["2", graphs, "3"], ["4", graphs, "3"]]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "aoti"])
def test_an_exported_model_is_swept_too(form, swept):
    pytest.importorskip("onnxruntime")
    status, out, err = swept("--latency", "1", "3", "--through", form)
    assert status == 0, err
    assert [row[0] for row in table(out)] == ["1", "3"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--through", "onnx"), "--through is of --latency"),
        (("--latency", "--through", "onnx", "--emulate"), "--through runs on the CPU"),
        (("--latency", "0", "--device", "cpu"), "takes sizes of 1 or more, got 0"),
    ],
)
def test_what_cannot_be_swept_is_one_line(words, what, swept):
    status, _, err = swept(*words)
    assert status == 2
    assert what in err


def test_a_damaged_sweep_is_named_and_the_rest_is_shown(swept, capsys):
    Path("run/latency.json").write_text('{"results": {"latency": [1]}}')
    status, out, _ = command(capsys, "report", "run", "--json")
    assert status == 0
    (problem,) = json.loads(out)["runs"][0]["problems"]
    assert problem.startswith("latency.json cannot be read: ")
