"""The conformance tests on Modular's device, where the host does what it lacks."""

import pytest

pytest.importorskip("torch_mojo_backend", reason="`make test-mojo` installs it")

import tests.mojo.soft_targets  # noqa: F401 - registers the device
from devrun.testing import AdapterConformance

pytestmark = [
    pytest.mark.mojo,
    # an exception in its kernels' module would end the process
    pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute"),
]


class TestMojo(AdapterConformance):
    device = {"type": "mojo", "fallback": "cpu"}
