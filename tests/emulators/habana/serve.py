"""The process of a mode for the files `cases_*.py`; see tests/support/modes.py."""

import warnings

import habana_frameworks.torch  # noqa: F401 - makes the device known
import torch
from habana_frameworks import emulator

from tests.support.modes import serve


def before():
    torch.manual_seed(0)
    emulator.reset()


warnings.simplefilter("error")
serve(before)
