"""`devrun devices --bench`: measured, kept for this device, refused on emulators."""

from __future__ import annotations

import json
import os
from functools import partial

import pytest
import torch

from devrun.devices.resolve import resolve_device
from devrun.rehearsal import bench as module
from devrun.rehearsal.bench import load
from tests.support.command import command


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture
def devices(capsys):
    return partial(command, capsys, "devices")


@pytest.mark.slow
def test_the_cpu_is_measured_and_the_result_kept(devices, cache):
    status, out, _ = devices("--bench", "--device", "cpu", "--seconds", "1", "--json")
    data = json.loads(out)
    assert (status, data["schema"], data["device"]) == (0, "devrun.peaks/1", "cpu")
    for entry in data["measured"]:
        assert 0 < entry["low"] <= entry["median"] <= entry["high"]
        assert 0 < entry["share"] <= 1
    kinds = {entry["kind"] for entry in data["measured"]}
    assert kinds == {"matmul", "conv", "attention", "memory", "launch"}
    shapes = [e["shape"] for e in data["measured"] if e["kind"] == "matmul"]
    assert "1000x1001 by 1001x1000" in shapes
    assert any(line.startswith("all_reduce: ") for line in data["left_out"])
    adapter = resolve_device("cpu")
    adapter.setup(0)
    kept = load(adapter)
    products = [
        e for e in data["measured"] if (e["kind"], e["dtype"]) == ("matmul", "fp32")
    ]
    assert kept.peak("fp32") == max(entry["median"] for entry in products)
    assert kept.peak("fp8") is None
    (file,) = cache.rglob("*.json")
    file.write_text(file.read_text()[:100])
    assert load(adapter) is None  # damaged: as if nothing was measured


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--bench", "--device", "tpu"), 2, "'tpu'"),
        (("--bench", "--device", "npu"), 9, "device 'npu' is not here"),
        (("--bench", "--seconds", "0"), 2, "--seconds must be a number above 0, got 0"),
        (("--seconds", "3"), 2, "--seconds is for --bench; add that, or leave it out"),
    ],
)
def test_bad_input_is_one_line(devices, words, status, said):
    found, out, err = devices(*words)
    assert (found, out) == (status, "")
    assert said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["hpu", "ipu"])
def test_an_emulated_device_is_not_measured(name):
    adapter = resolve_device({"type": name, "emulate": True})
    with pytest.raises(module.UnsupportedFeatureError, match="nothing about speed"):
        module.measure(adapter)


ODD = {"median": [1], "kind": [1], "low": None, "dtype": 10**400}
RESULTS = {
    "deep": "[" * 100_000,
    "another kind": "3",
    "text": json.dumps({"measured": [{"median": "ten"}]}),
    **{f"odd {key}": key for key in ODD},
    "huge": "median",
}


@pytest.fixture
def kept():
    """The CPU, and the file with what is kept of it: no measured rate."""
    adapter = resolve_device("cpu")
    adapter.setup(0)
    words = module.describe(adapter, adapter.device), str(torch.__version__)
    peaks = module.Peaks(
        "cpu", words[0], {"torch": words[1]}, torch.get_num_threads(), [], []
    )
    return adapter, module.save(peaks)


@pytest.mark.parametrize("name", RESULTS)
def test_no_kept_result_ends_a_training(kept, name):
    adapter, place = kept
    facts = {"kind": "matmul", "dtype": "fp32", "shape": "any", "median": 10, "low": 9}
    facts |= {"high": 11, "unit": "GFLOP/s", "share": 1}
    whole = json.loads(place.read_text())
    text = RESULTS[name]
    if text in facts:
        value = 10**400 if name == "huge" else ODD[text]
        text = json.dumps({**whole, "measured": [{**facts, text: value}]})
    place.write_text(text)
    found = load(adapter)
    assert found is None or found.peak("fp32") in (None, 10)


def test_neither_a_pipe_nor_no_home_ends_a_training(kept, monkeypatch):
    adapter, place = kept
    assert load(adapter) is not None
    place.unlink()
    os.mkfifo(place)
    assert load(adapter) is None
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as a container's any user
    assert load(adapter) is None
