"""What Modular's device is told before it is imported, here and in the commands."""

import os
import sys
from pathlib import Path

# a kernel that is not built yet is waited for where it is called: in the order of the
# program, and never in a thread whose exceptions end the process
os.environ.setdefault("TORCH_MOJO_BACKEND_KERNEL_QUEUE", "0")
# Modular's compiler is a program that asks the first python3 for itself
os.environ["PATH"] = os.pathsep.join(
    [str(Path(sys.executable).parent), os.environ["PATH"]]
)
