"""Every adapter that can run here passes the conformance suite that is shipped.

Those that change torch for their process have one of their own: tests/hpu runs it.
"""

import ast

import pytest

from devrun.devices.cpu import CPUAdapter
from devrun.devices.cuda.adapter import CUDAAdapter
from devrun.devices.eager import EagerAdapter
from devrun.devices.generic import GenericAdapter
from devrun.devices.hpu.adapter import HPUAdapter
from devrun.testing import AdapterConformance
from tests.contract.toy_device import ToyAdapter
from tests.docs.blocks import all_blocks


class TestCPU(AdapterConformance):
    device = "cpu"


class TestCPUChannelsLast(AdapterConformance):
    device = {"type": "cpu", "channels_last": True}


class TestToyRegistered(AdapterConformance):
    device = "toy"
    torch_device = "cpu"  # although values are to be fetched from it


class TestMirrorEntryPoint(AdapterConformance):
    device = "mirror"


class TestIPUEmulated(AdapterConformance):
    device = {"type": "ipu", "emulate": True}


class TestExample(AdapterConformance):
    """That of examples/plugin_device."""

    device = {"type": "cores", "count": 1}


@pytest.mark.cuda
class TestCUDA(AdapterConformance):
    device = "cuda"


def test_an_adapter_needs_no_private_name():
    adapters = [ToyAdapter, CPUAdapter, CUDAAdapter, HPUAdapter, GenericAdapter]
    for block in all_blocks("python"):
        if "(EagerAdapter)" in block.text:
            tree = ast.parse(block.text)
            named = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
            assert named and not [name for name in named if name.startswith("_")]
    for adapter in adapters:
        own = {n for n in vars(adapter) if n.startswith("_") and not n.endswith("__")}
        assert own & vars(EagerAdapter).keys() <= {"_abc_impl"}
