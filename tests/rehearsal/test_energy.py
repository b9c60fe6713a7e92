"""Energy by the machine's own counters: measured, given, or none."""

from __future__ import annotations

import json
import sys

import pytest
import yaml

from devrun.cli.main import main
from devrun.devices.nvml import energy_counter
from devrun.log.energy import EnergyMeter
from tests.cli.conftest import CONFIG

RANGE = 262_143_328_850


def zone(root, name, kind, uj, most=RANGE):
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{kind}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    (folder / "energy_uj").write_text(f"{uj}\n")
    return folder / "energy_uj"


def test_the_counters_of_all_packages_are_added_and_wrap_around(tmp_path):
    first = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    core = zone(tmp_path, "intel-rapl:0:0", "core", 0)  # is in the package
    dram = zone(tmp_path, "intel-rapl:0:1", "dram", 0)
    zone(tmp_path, "intel-rapl:1", "psys", 0)
    second = zone(tmp_path, "intel-rapl:2", "package-1", RANGE - 2_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 0)  # the same once more
    meter = EnergyMeter(powercap=tmp_path)
    for file, uj in ((first, 3_000_000), (core, 10**9), (dram, 500_000)):
        file.write_text(str(uj))
    second.write_text("1000000")
    found = meter.stop()
    assert (found["joules"], found["source"]) == (2 + 0.5 + 3, "measured")
    assert len(found["counters"]) == 3


@pytest.mark.parametrize("odd", ["", "x", "-"])
def test_a_counter_that_cannot_be_read_counts_for_nothing(tmp_path, odd):
    zone(tmp_path, "intel-rapl:0", "package-0", odd)
    found = EnergyMeter(powercap=tmp_path).stop()
    assert (found["joules"], found["source"]) == (None, "none")
    assert str(tmp_path) in found["why"]


def test_the_device_is_counted_too(tmp_path):
    counts = iter([10.0, 12.5])
    meter = EnergyMeter(("a device", lambda: next(counts)), tmp_path)
    found = meter.stop()
    assert found == {"joules": 2.5, "source": "measured", "counters": ["a device"]}


def test_a_device_that_tells_no_more_ends_no_training(tmp_path):
    def lost():
        raise RuntimeError("GPU is lost")

    assert EnergyMeter(("a device", lost), tmp_path).stop()["source"] == "none"


NVML = """
class NVMLError(Exception):
    pass

def nvmlInit():
    pass

def nvmlDeviceGetHandleByUUID(uuid):
    if uuid != "GPU-known":
        raise NVMLError("not found")
    return uuid

def nvmlDeviceGetName(handle):
    return "Card"

def nvmlDeviceGetTotalEnergyConsumption(handle):
    return 12_500  # mJ
"""


def test_a_gpu_is_asked_by_its_uuid(tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(NVML)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    name, joules = energy_counter("known")
    assert (name, joules()) == ("NVML Card", 12.5)
    assert energy_counter("other") is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as where it is not installed
    assert energy_counter("known") is None


def test_a_training_tells_its_energy_and_the_report_how_it_is_known(
    tmp_path, monkeypatch, capsys
):
    zone(tmp_path / "powercap", "intel-rapl:0", "package-0", 7_000_000)
    monkeypatch.setenv("DEVRUN_POWERCAP", str(tmp_path / "powercap"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(CONFIG))
    assert main(["train", "small.yaml", "--work-dir", "run"]) == 0
    assert "energy: 0 J by RAPL package-0" in capsys.readouterr().out
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["energy"]["source"] == "measured"
    facts["energy"]["joules"] = 3600.0
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    for words, source in (((), "measured"), (("--watts", "5"), "given")):
        assert main(["report", "run", "--json", *words]) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        assert run["figures"]["joules_source"] == source
        assert main(["report", "run", *words]) == 0
        capsys.readouterr()
    assert run["figures"]["joules"] == pytest.approx(5 * facts["duration_seconds"])
    assert main(["report", "run"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "3,600 J (0.001 kWh), measured" in page
