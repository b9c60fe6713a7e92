"""What an IPU would not compile, hold, keep busy or do again."""

from devrun.devices.ipu.probes.arithmetic import Arithmetic
from devrun.devices.ipu.probes.compiling import Compiling
from devrun.devices.ipu.probes.graphs import Graphs
from devrun.devices.ipu.probes.script import IPUProgram
from devrun.probes.gpu_only import GPUOnly
from devrun.probes.probe import Probes

PROBES = Probes((GPUOnly, Compiling, Arithmetic, Graphs), IPUProgram)
