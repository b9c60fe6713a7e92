"""A plug-in's device under its name, and what it has no kernel for.

The emulated Gaudi stands for it: to torch it is such a device.
"""

import json
from pathlib import Path

import pytest

from devrun.devices.generic import MPSAdapter
from devrun.errors import ConfigError
from tests.support import zygote

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "configs/digits/resnet8_digits.yaml"
EMULATORS = ROOT / "devrun/emulators"
PROGRAM = f"""
import sys
sys.path.insert(0, {str(EMULATORS)!r})
import torch
import habana_frameworks.torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset
from devrun import EpochBasedRunner
from devrun.errors import DeviceUnavailableError
from devrun.tensors import tensors_in

LACKED = {{"aten::relu_", "aten::threshold_backward"}}
SEEN = set()
IN_PLACE = {{"aten::_foreach_add_", "aten::_foreach_mul_", "aten::native_batch_norm"}}

class Lacking(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name in LACKED and next(tensors_in(args)).device.type == "hpu":
            SEEN.add(name)
            raise NotImplementedError(func._schema.name)
        return func(*args, **(kwargs or dict()))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        hidden = self.norm(self.first(x))
        torch.relu_(hidden)
        return self.last(hidden)

def weights(device):
    torch.manual_seed(0)
    net, data = Net(), TensorDataset(torch.randn(8, 3), torch.arange(8) % 2)
    runner = EpochBasedRunner(
        net, loss=nn.CrossEntropyLoss(), max_epochs=2, device=device,
        optimizer=torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, foreach=True))
    loader = DataLoader(data, batch_size=4)
    runner.run([loader, loader], [("train", 1), ("val", 1)])
    return [value.cpu() for value in net.state_dict().values()]

with Lacking():
    try:
        weights("accelerator")
    except DeviceUnavailableError as error:
        print("error:", error)
    LACKED |= IN_PLACE
    mine = weights(dict(type="accelerator", fallback="cpu"))
print("never called:", *sorted(LACKED - SEEN))
print("equal:", all(map(torch.equal, mine, weights("cpu"))))
"""


def test_what_has_no_kernel_is_named_at_once_or_done_on_the_host(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = zygote.run([program], cwd=tmp_path)
    said = [line for line in done.stdout.splitlines() if line.startswith("error")]
    place = f"{program}:{PROGRAM.splitlines().index('        torch.relu_(hidden)') + 1}"
    assert said == [
        "error: device 'accelerator' has no kernel for "
        f"aten::relu_ ({place}), aten::threshold_backward ({place}): use other "
        "operators, or set device: {type: accelerator, fallback: cpu}, which has the "
        "host do them"
    ], done.stderr
    assert "never called:\nequal: True\n" in done.stdout, done.stderr
    told = [line for line in done.stderr.splitlines() if "the host does" in line]
    # with momentum the second update has one more; each is told once
    assert len(told) == 2 and "has no kernel for aten::_foreach_mul_ (" in told[1]


@pytest.mark.slow
def test_check_lists_what_has_no_kernel_on_a_device_of_the_users_own(tmp_path):
    """Which is known once the module that the user names is imported."""
    (tmp_path / "my_lacking.py").write_text(
        PROGRAM.partition("class Net")[0] + "from devrun import register_device\n"
        "register_device('lacking', 'devrun.devices.generic:GenericAdapter')\n"
        "Lacking().__enter__()\n"
    )
    words = ["-m", "devrun", "check", DIGITS, "--device", "lacking", "--json"]
    done = zygote.run([*words, "--import", "my_lacking"], cwd=tmp_path)
    (device,) = json.loads(done.stdout)["devices"]
    found = {one["what"]: one for one in device["findings"]}
    assert done.returncode == 11
    assert found["aten::threshold_backward"]["kind"] == "no kernel"
    assert "resnet.py" in found["aten::threshold_backward"]["site"]


def test_a_plugged_in_device_is_known_by_its_name(tmp_path):
    (tmp_path / "my_plug.py").write_text(
        "import sys, torch\ntorch.utils.rename_privateuse1_backend('plugged')\n"
        "torch._register_device_module('plugged', sys.modules[__name__])\n"
        "def is_available():\n    return False\n"
    )
    words = ["-m", "devrun", "devices", "--conformance", "plugged"]
    done = zygote.run([*words, "--import", "my_plug"], cwd=tmp_path)
    assert done.returncode == 9
    assert "the plug-in that brings 'plugged' finds none" in done.stderr


def test_a_low_precision_that_a_plug_in_would_ignore_is_refused(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\ntorch.utils.rename_privateuse1_backend('plugged')\n"
        "from devrun.devices.precision import autocast_for\n"
        "print(autocast_for('fp32', 'plugged'))\nautocast_for('bf16', 'plugged')\n"
    )
    done = zygote.run([program], cwd=tmp_path)
    assert done.stdout == "None\n"
    said = "precision 'bf16' would change nothing on device 'plugged'"
    assert said in done.stderr


def test_a_fallback_is_the_cpu_or_none():
    with pytest.raises(ConfigError, match="fallback' of device 'mps' must be 'cpu'"):
        MPSAdapter.from_config({"fallback": "cuda"})
