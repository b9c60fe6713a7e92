"""Runs every `case_*` of the given files in this process and prints what failed.

The emulated device changes torch for the whole process, so the cases of one mode
share a process of their own, apart from pytest's.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
import warnings
from pathlib import Path

import habana_frameworks.torch  # noqa: F401 - makes the device known
import torch
from habana_frameworks import emulator


def load(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(case):
    """None, or the traceback of a failure."""
    torch.manual_seed(0)
    emulator.reset()
    try:
        case()
    except Exception:  # noqa: BLE001 - reported to the test
        return traceback.format_exc()
    return None


def main():
    warnings.simplefilter("error")
    results = {}
    for path in sys.argv[1:]:
        module = load(path)
        for name, case in list(vars(module).items()):
            if name.startswith("case_"):
                results[f"{Path(path).stem}.{name}"] = run(case)
    sys.stdout.write("\n" + json.dumps(results))


main()
