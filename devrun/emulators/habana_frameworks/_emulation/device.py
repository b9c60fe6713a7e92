"""The device `hpu`, made known to torch under the key that it keeps for others.

Stock torch knows the name hpu but has no backend behind it, and Python can register a
device guard for one type only, PrivateUse1. Giving that type the name hpu makes
`torch.device("hpu")`, strings and comparisons all resolve to it. Before torch 2.10 the
guard is compiled, and is one of the key that such a torch takes the name for.
"""

from __future__ import annotations

import torch

from habana_frameworks._emulation.torch_private import IN_PYTHON

try:
    torch.utils.rename_privateuse1_backend("hpu")
except RuntimeError as error:
    raise ImportError(
        "another package took torch's PrivateUse1 device, which the emulated Gaudi "
        f"needs: {error}"
    ) from error

DEVICE = torch.device("hpu", 0)
HOST = torch.device("cpu")
KEY = "PrivateUse1" if IN_PYTHON else "HPU"
