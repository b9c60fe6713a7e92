"""The adapters that the contract is checked on, and where they come from."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from devrun.devices.resolve import register_device, resolve_device

DEVICES = [
    pytest.param("cpu", id="cpu"),
    pytest.param({"type": "cpu", "channels_last": True}, id="cpu-channels-last"),
    pytest.param("toy", id="toy-registered"),
    pytest.param("mirror", id="mirror-entry-point"),
    pytest.param({"type": "ipu", "emulate": True}, id="ipu-emulated"),
    pytest.param("cuda", id="cuda", marks=pytest.mark.cuda),
]
if "DEVRUN_CONTRACT_DEVICE" in os.environ:
    # an emulated device that changes torch for its process gets one of its own
    DEVICES = [pytest.param(json.loads(os.environ["DEVRUN_CONTRACT_DEVICE"]), id="own")]


@pytest.fixture(scope="session")
def plugins(tmp_path_factory):
    """A package outside the tree, installed as pip would: module and dist-info."""
    site = tmp_path_factory.mktemp("site-packages")
    shutil.copy(Path(__file__).with_name("toy_device.py"), site / "toy_device.py")
    info = site / "toy_device-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: toy-device\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text(
        "[devrun.devices]\nmirror = toy_device:MirrorAdapter\n"
    )
    sys.path.insert(0, str(site))
    register_device("toy", "toy_device:ToyAdapter", force=True)
    yield site
    sys.path.remove(str(site))
    sys.modules.pop("toy_device", None)


@pytest.fixture(params=DEVICES)
def device(request, plugins):
    """What a user writes to get the device."""
    return request.param


@pytest.fixture
def adapter(device):
    """The device's adapter, set up and, in the end, torn down."""
    made = resolve_device(device)
    made.setup(0)
    yield made
    made.teardown()
