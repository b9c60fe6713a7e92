"""The torch part of the SDK; importing it makes the device `hpu` known to torch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

os.environ.setdefault("HABANA_PROFILE", "profile_api_light")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
if shutil.which("hl-smi") is None:  # tools ask it for the release
    _programs = str(Path(__file__).resolve().parent.parent / "bin")
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", ""), _programs))

from habana_frameworks._emulation import patches, register
from habana_frameworks._emulation.settings import check_torch, flag
from habana_frameworks.torch import hpu

check_torch()

register.install(hpu)
patches.install()

from habana_frameworks.torch import core, distributed, dynamo, hpex, utils  # noqa: E402
from habana_frameworks.torch.distributed import hccl  # noqa: E402

__all__ = ["core", "distributed", "dynamo", "hccl", "hpex", "hpu", "utils"]

if flag("PT_HPU_GPU_MIGRATION"):
    from habana_frameworks.torch import gpu_migration  # noqa: F401
