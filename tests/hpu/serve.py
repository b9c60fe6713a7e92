"""The process of a mode for the files `cases_*.py`; see tests/support/modes.py."""

import sys
import warnings

import torch

from tests.hpu.runs import set_up
from tests.support.modes import serve


def before():
    torch.manual_seed(0)
    torch.compiler.reset()


set_up(sys.argv[1])
if sys.argv[1] != "compile":  # in whose course torch warns of itself
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated")
serve(before)
