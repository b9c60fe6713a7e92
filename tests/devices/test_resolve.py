"""From a name to an adapter, and what is said when that is not possible."""

import re
import sys

import pytest
import torch

import devrun.device_facts as table
from devrun.config import check_config
from devrun.devices import device_section, resolve
from devrun.devices.cpu import CPUAdapter
from devrun.devices.resolve import (
    available_devices,
    device_names,
    register_device,
    resolve_device,
)
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    DeviceUnavailableError,
    DevrunError,
    UnknownNameError,
)


@pytest.fixture(autouse=True)
def registrations(monkeypatch):
    monkeypatch.setattr(resolve, "_registered", dict(resolve._registered))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Install a package by its entry points alone."""

    def install(package, *lines):
        info = tmp_path / (package.replace("-", "_") + "-1.0.dist-info")
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        text = "\n".join(("[devrun.devices]", *lines))
        (info / "entry_points.txt").write_text(text + "\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    return install


class Emulated(CPUAdapter):
    name = "emulated"
    emulated = True


class Absent(CPUAdapter):
    name = "absent"

    @classmethod
    def unavailable_reason(cls):
        return "its SDK is missing: run the vendor's installer"


@pytest.mark.parametrize(
    "spec", ["cpu", "CPU", {"type": "cpu"}, torch.device("cpu"), CPUAdapter]
)
def test_ways_to_say_cpu(spec):
    assert type(resolve_device(spec)) is CPUAdapter


def test_a_mapping_carries_options_and_is_left_alone():
    config = {"type": "cpu", "channels_last": True, "emulate": False}
    assert resolve_device(config).options.channels_last is True
    assert config == {"type": "cpu", "channels_last": True, "emulate": False}


@pytest.mark.parametrize(
    ("name", "hint"), [("cup", "'cpu'"), ("gpu", "'cuda'"), ("ato", "'auto'")]
)
def test_an_unknown_name_gives_the_nearest(name, hint):
    with pytest.raises(UnknownNameError, match=f"did you mean {hint}"):
        resolve_device(name)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        (None, ConfigTypeError),
        (3, ConfigTypeError),
        ({}, ConfigError),
        ({"type": 3}, ConfigError),
        ("cpu:first", ConfigError),
        ({"type": "cuda:1", "index": 0}, ConfigError),
        ({"type": "cpu", "emulate": True}, ConfigError),
    ],
)
def test_a_spec_that_means_nothing_is_refused_in_one_line(spec, error):
    with pytest.raises(error) as refusal:
        resolve_device(spec)
    assert "\n" not in str(refusal.value)


@pytest.mark.skipif(
    hasattr(torch, "accelerator") and torch.accelerator.is_available(),
    reason="this machine has an accelerator",
)
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "xpu", "npu", "accelerator"])
def test_an_absent_device_is_never_replaced(name):
    with pytest.raises(
        DeviceUnavailableError, match=r"not here: .*(install|needs|check)"
    ):
        resolve_device(name)


def test_auto_takes_the_first_that_is_really_here(monkeypatch):
    table = {**resolve.ADAPTERS, "cuda": f"{__name__}:Absent"}
    monkeypatch.setattr(resolve, "ADAPTERS", table)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Absent.__module__])
    register_device("hpu", Emulated, force=True)
    adapter = resolve_device("auto")
    assert adapter.name not in ("emulated", "absent")


@pytest.mark.parametrize("name", ["cpu", "twice"])
def test_a_taken_name_is_refused_unless_forced(name):
    register_device("twice", CPUAdapter)
    with pytest.raises(ConfigError, match="already"):
        register_device(name, Absent)
    register_device(name, Absent, force=True)
    with pytest.raises(DeviceUnavailableError):
        resolve_device(name)


def test_a_target_that_cannot_be_imported_is_said_when_asked_for():
    register_device("mine", "no_such_module_here:Adapter")
    with pytest.raises(DeviceUnavailableError, match="no_such_module_here"):
        resolve_device("mine")


def test_a_target_that_is_no_adapter_is_refused():
    register_device("mine", "collections:OrderedDict")
    with pytest.raises(ConfigError, match="not a subclass of DeviceAdapter"):
        resolve_device("mine")


def test_a_plug_in_that_does_not_fit_is_one_line_and_the_others_are_listed(
    site, tmp_path
):
    (tmp_path / "plug_older.py").write_text(
        "from devrun.devices.base import DeviceAdapter\n"
        "class Adapter(DeviceAdapter):\n    name = 'older'\n"
    )
    (tmp_path / "plug_library.py").write_text("import ctypes; ctypes.CDLL('none.so')")
    site("plugin-older", "older = plug_older:Adapter", "library = plug_library:A")
    site("plugin-first", "both = first:Adapter", "same = one:Adapter")
    site("plugin-second", "both = second:Adapter", "same = one : Adapter")
    reasons = {row.name: row.reason for row in available_devices()}
    assert reasons["cpu"] is None
    said = {
        "older": "plug_older.Adapter has no .*setup.* this devrun asks of an adapter",
        "library": "cannot be imported: none.so: cannot open",
        "both": "is offered by first:Adapter and second:Adapter; uninstall",
        "same": "cannot be imported: No module named 'one'",
    }
    for name, words in said.items():
        assert re.search(words, reasons[name])
        with pytest.raises(DevrunError, match=words):
            resolve_device(name)


def test_every_name_has_a_row_with_devices_or_a_reason(site):
    site("plugin-broken", "broken = no_such_module_here:Adapter")
    rows = {row.name: row for row in available_devices()}
    assert set(rows) == set(device_names())
    assert rows["cpu"].available
    assert rows["cpu"].devices[0].memory_bytes > 2**20
    assert "fp32" in rows["cpu"].devices[0].dtypes
    for row in rows.values():
        assert bool(row.reason) != row.available
    assert "no_such_module_here" in rows["broken"].reason


FACTS = """
from devrun.device_facts import DeviceFacts

FACTS = DeviceFacts(
    auto=1,
    runner_options={"own_cfg": "dict"},
    top_level_options={"own_replicas": ("replicas", "count?")},
)
"""


@pytest.fixture
def facts():
    """Those of packages are read anew."""
    table._loaded.cache_clear()
    yield
    table._loaded.cache_clear()


def test_a_package_brings_the_facts_of_its_device(facts, tmp_path, monkeypatch):
    """To configs, resumes and `auto`, as the devices of this package do."""
    info = tmp_path / "own_device-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-device\n")
    group = f"[{table.ENTRY_POINT_GROUP}]\nown = own_device_facts:FACTS\n"
    (info / "entry_points.txt").write_text(group)
    (tmp_path / "own_device_facts.py").write_text(FACTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    check_config({"own": {"x": 1}, "own_replicas": 2, "runner": {"own_cfg": {}}})
    with pytest.raises(ConfigError, match="own_replicas"):
        check_config({"own_replicas": 0})
    spec = device_section.device_spec({"own_replicas": 2})
    assert spec == {"type": "own", "replicas": 2}

    class Own(CPUAdapter):
        name = "own"

    register_device("own", Own)
    assert resolve_device("auto").name == "own"
