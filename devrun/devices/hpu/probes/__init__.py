"""What a Gaudi would refuse, do slowly, or compute otherwise."""

from devrun.devices.hpu.probes.batches import BatchShapes
from devrun.devices.hpu.probes.probe import HPUProbe
from devrun.devices.hpu.probes.script import HPUProgram
from devrun.probes.gpu_only import GPUOnly
from devrun.probes.probe import Probes

# of what lazy mode has, eager has all but graphs that are compiled again
PROBES = Probes(
    (GPUOnly, HPUProbe, BatchShapes),
    HPUProgram,
    modes=("lazy", "compile"),
    torch_device="hpu",
)
