"""Where the adapters that are tested here come from."""

import shutil
import sys
from pathlib import Path

import pytest

from devrun.devices.resolve import register_device

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/plugin_device"


def pytest_collection_modifyitems(items):
    """What starts processes of its own takes half a minute on two busy cores."""
    for item in items:
        if item.name == "test_several_processes_train_as_one":
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
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
    sys.path.insert(0, str(EXAMPLE))
    register_device("toy", "toy_device:ToyAdapter", force=True)
    register_device("cores", "devrun_cores:CoresAdapter", force=True)
    yield site
    for path, module in ((site, "toy_device"), (EXAMPLE, "devrun_cores")):
        sys.path.remove(str(path))
        sys.modules.pop(module, None)
