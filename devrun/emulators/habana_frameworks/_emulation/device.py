"""The device `hpu`, made known to torch under the key that it keeps for others.

Stock torch knows the name hpu but has no backend behind it, and Python can register a
device guard for one type only, PrivateUse1. Giving that type the name hpu makes
`torch.device("hpu")`, strings and comparisons all resolve to it.
"""

from __future__ import annotations

import torch

NEEDED = "register_python_privateuseone_device_guard"
if not hasattr(getattr(torch._C, "_acc", None), NEEDED):
    raise ImportError(
        f"the emulated Gaudi needs a torch whose backends can be written in Python "
        f"(2.9 or newer; tested with 2.13); this is torch {torch.__version__}"
    )
if torch._C._get_privateuse1_backend_name() not in ("privateuseone", "hpu"):
    raise ImportError(
        "another package took torch's PrivateUse1 device: "
        f"{torch._C._get_privateuse1_backend_name()}; the emulated Gaudi needs it"
    )
torch.utils.rename_privateuse1_backend("hpu")

DEVICE = torch.device("hpu", 0)
HOST = torch.device("cpu")
KEY = "PrivateUse1"
