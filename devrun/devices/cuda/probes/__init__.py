"""What a run on the CPU shows of a training on CUDA.

Every tensor is tagged by where it would be (`origins`), and every operator seen
(`watch`); `steps` asks judges about each: syncs, mismatches, determinism, precision.
Memory, `torch.compile` and the memory format are tried in forked processes (`aside`).
"""

from devrun.devices.cuda.probes.memory import Memory
from devrun.devices.cuda.probes.steps import Steps
from devrun.probes.compiles import Compiles
from devrun.probes.probe import Probes

PROBES = Probes((Steps, Memory, Compiles), seen_from_cpu=True)
