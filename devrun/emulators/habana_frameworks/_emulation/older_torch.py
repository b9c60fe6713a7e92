"""What makes `hpu` a device of a torch before 2.10, which has none in Python.

Such a torch looks for a guard of the device, and takes only one that is compiled. It is
built once for each release, and stays in the user's cache: one of each key that such a
torch may take the name for.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path

import torch

SOURCE = r"""
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isAvailable() const { return true; }  // is asked for since 2.9
};
template <c10::DeviceType D>
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Device device() { return c10::Device(D, 0); }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }
  c10::DeviceType type() const override { return D; }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
using Named = Guard<c10::DeviceType::HPU>;
using PluggedIn = Guard<c10::DeviceType::PrivateUse1>;
C10_REGISTER_GUARD_IMPL(HPU, Named);
C10_REGISTER_GUARD_IMPL(PrivateUse1, PluggedIn);
const bool done = (at::RegisterPrivateUse1HooksInterface(new Hooks), true);
} // namespace
"""

TP_CLEAR = object.__basicsize__ + 22 * ctypes.sizeof(ctypes.c_void_p)
"""Where a PyTypeObject of CPython 3.8 to 3.13 has what clears an object."""


def keep_attributes(kind: type) -> None:
    """Let the garbage collector clear no object of `kind`, a class of tensors.

    A tensor that autograd has saved lives on when a circle of garbage that held it too
    is freed. Before 2.10 the collector takes its attributes nevertheless: its values.
    """
    ctypes.c_void_p.from_address(id(kind) + TP_CLEAR).value = None


def compiled_guard() -> ctypes.CDLL:
    """The guard, which is registered with torch now; built at its first use.

    Raises:
        ImportError: there is no compiler, or it fails.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = f"hpu-guard-{torch.__version__}-{zlib.crc32(SOURCE.encode()):x}.so"
    built = cache / "devrun" / name
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
