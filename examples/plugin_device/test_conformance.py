"""`python -m pytest`, once the package is installed: what a runner may rely on."""

from devrun.testing import AdapterConformance


class TestCores(AdapterConformance):
    device = "cores"
