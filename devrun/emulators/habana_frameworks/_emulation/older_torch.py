"""What makes `hpu` a device of a torch before 2.10, which has none in Python.

Such a torch looks for a guard of the device, and takes only one that is compiled. It is
built once for each release, and stays in the user's cache. That torch takes the name
`hpu` for a key of its own, which has no backend.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = r"""
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
using Guard = c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::HPU>;
using Accelerator = c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1>;
C10_REGISTER_GUARD_IMPL(HPU, Guard);
C10_REGISTER_GUARD_IMPL(PrivateUse1, Accelerator); // asked by torch.accelerator
const bool done = (at::RegisterPrivateUse1HooksInterface(new Hooks), true);
} // namespace
"""


def compiled_guard() -> ctypes.CDLL:
    """The guard, which is registered with torch now; built at its first use.

    Raises:
        ImportError: there is no compiler, or it fails.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = cache / "devrun" / f"hpu-guard-{torch.__version__}.so"
    if built.exists():
        return ctypes.CDLL(str(built))
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise ImportError(
            f"the emulated Gaudi compiles a few lines for torch {torch.__version__}, "
            "and finds no c++: install g++ (or set CXX), or take torch 2.10 or newer"
        )
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        source, made = Path(folder, "guard.cpp"), Path(folder, "guard.so")
        source.write_text(SOURCE)
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        words = [compiler, "-shared", "-fPIC", "-std=c++17", abi, str(source)]
        torchs = Path(torch.__file__).parent
        words += [f"-I{torchs / 'include'}", f"-L{torchs / 'lib'}"]
        done = subprocess.run(
            [*words, "-ltorch_cpu", "-lc10", "-o", str(made)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no message"])[0]
            raise ImportError(f"the emulated Gaudi: {compiler} fails: {said}")
        made.rename(built)
    return ctypes.CDLL(str(built))
