"""`devrun devices --bench`: measured, and refused on emulators."""

import json
from functools import partial

import pytest

from devrun.devices.resolve import resolve_device
from devrun.errors import UnsupportedFeatureError
from devrun.rehearsal.bench import measure
from tests.support.command import command


@pytest.fixture
def devices(capsys):
    return partial(command, capsys, "devices")


@pytest.mark.slow
def test_the_cpu_is_measured(devices):
    status, out, err = devices("--bench", "--device", "cpu", "--json")
    assert "devrun: note: cpu is measured" in err
    data = json.loads(out)
    assert (status, data["schema"], data["device"]) == (0, "devrun.peaks/2", "cpu")
    for entry in data["measured"]:
        assert 0 < entry["low"] <= entry["median"] <= entry["high"]
    kinds = {entry["kind"] for entry in data["measured"]}
    assert kinds == {"matmul", "memory"}
    shapes = [e["shape"] for e in data["measured"] if e["kind"] == "matmul"]
    assert "1000x1001 by 1001x1000" in shapes


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--bench", "--device", "tpu"), 2, "'tpu'"),
        (("--bench", "--device", "npu"), 9, "device 'npu' is not here"),
        (("--device", "cpu"), 2, "--device is for --bench; add that, or leave it out"),
    ],
)
def test_bad_input_is_one_line(devices, words, status, said):
    found, out, err = devices(*words)
    assert (found, out) == (status, "")
    assert said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["hpu", "ipu"])
def test_an_emulated_device_is_not_measured(name):
    adapter = resolve_device({"type": name, "emulate": True})
    with pytest.raises(UnsupportedFeatureError, match="nothing about the speed"):
        measure(adapter)
