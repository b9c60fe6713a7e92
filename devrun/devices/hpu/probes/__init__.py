"""What a Gaudi would refuse, do slowly, or compute otherwise."""

from devrun.devices.hpu.probes.batches import BatchShapes
from devrun.devices.hpu.probes.probe import HPUProbe
from devrun.devices.hpu.probes.script import HPUProgram
from devrun.probes.dense import DenseBuffers
from devrun.probes.own_compile import OwnCompile
from devrun.probes.probe import Probes

PROBES = Probes(
    (DenseBuffers, OwnCompile, HPUProbe, BatchShapes),
    HPUProgram,
    modes=("lazy", "eager", "compile"),
    torch_device="hpu",
)
