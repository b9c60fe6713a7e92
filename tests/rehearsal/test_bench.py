"""`devrun devices --bench`: measured, kept for this device, refused on emulators."""

import json
from dataclasses import asdict
from functools import partial

import pytest

from devrun.devices.resolve import resolve_device
from devrun.rehearsal import bench as module
from devrun.rehearsal.bench import load
from tests.support import zygote
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
    assert any(line.startswith("all_reduce: ") for line in data["left_out"])
    adapter = resolve_device("cpu")
    adapter.setup(0)
    kept = load(adapter)
    assert [asdict(entry) for entry in kept.measured] == data["measured"]
    (file,) = cache.rglob("*.json")
    for text in (file.read_text()[:100], "3", "{}", '{"measured": [{"median": 1}]}'):
        file.write_text(text)
        assert load(adapter) is None  # damaged: as if nothing was measured


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
    with pytest.raises(module.UnsupportedFeatureError, match="nothing about the speed"):
        module.measure(adapter)


RANK = """
import sys, time
import torch
import torch.distributed as dist
from devrun.devices.resolve import resolve_device
from devrun.rehearsal import bench

adapter = resolve_device("cpu")
adapter.setup(0)
rank, values = dist.get_rank(), torch.ones(8)

def alone():
    if rank:
        raise RuntimeError("not on this rank")

def uneven():
    time.sleep(0.001 * (1 + 9 * rank))

runs = {"all_reduce": lambda: dist.all_reduce(values), "alone": alone, "memory": uneven}
rest = "fp32", "", 1e9
bench.cases = lambda *_, **__: [
    bench.Case(kind, *rest, lambda run=run: run) for kind, run in runs.items()
]
peaks = bench.measure(adapter, seconds=0.2)
assert [row.kind for row in peaks.measured] == ["all_reduce", "memory"], peaks
said = "not on this rank" if rank else "failed in another process"
assert peaks.left_out == ["alone fp32 : " + said], peaks
dist.all_reduce(values)
print("whole", flush=True)
dist.destroy_process_group()
"""


def test_several_processes_run_each_case_as_often(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    for process in zygote.start_ranks(["rank.py"], tmp_path, finalize=False):
        said, wrong = process.communicate(120)
        assert process.returncode == 0 and "whole" in said, wrong
