"""Runs every `case_*` of the given files in this process and prints what failed."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import torch

from tests.hpu.runs import set_up


def run(case):
    """None, or the traceback of a failure."""
    torch.manual_seed(0)
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder:
        takes = case.__code__.co_argcount
        try:
            case(*[Path(folder)][:takes])
        except Exception:  # noqa: BLE001 - reported to the test
            return traceback.format_exc()
    return None


def main():
    set_up(sys.argv[1])
    if sys.argv[1] != "compile":  # in whose course torch warns of itself
        warnings.simplefilter("error")
    results = {}
    for path in sys.argv[2:]:
        module = importlib.import_module(f"tests.hpu.{Path(path).stem}")
        for name, case in list(vars(module).items()):
            if name.startswith("case_"):
                results[f"{Path(path).stem}.{name}"] = run(case)
    sys.stdout.write("\n" + json.dumps(results))


main()
