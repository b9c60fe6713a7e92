"""The emulator on the path, and its settings as they were after each test."""

import sys
from pathlib import Path

import pytest

EMULATORS = str(Path(__file__).resolve().parents[3] / "devrun" / "emulators")
if EMULATORS not in sys.path:
    sys.path.insert(0, EMULATORS)


@pytest.fixture(autouse=True)
def emulator():
    """All IPUs, no memory limit, counters at zero."""
    from poptorch import emulation

    emulation.counts.clear()
    yield emulation
    emulation.set_ipus(None)
    emulation.set_memory_limit(None)
    emulation.counts.clear()


@pytest.fixture
def make():
    """Makes a small regression model with its loss inside."""
    import torch

    class Regression(torch.nn.Module):
        def __init__(self, norm=False, dropout=0.0):
            super().__init__()
            self.first = torch.nn.Linear(3, 4)
            self.norm = torch.nn.BatchNorm1d(4) if norm else torch.nn.Identity()
            self.dropout = torch.nn.Dropout(dropout)
            self.last = torch.nn.Linear(4, 1)

        def forward(self, x, y=None):
            out = self.last(self.dropout(torch.tanh(self.norm(self.first(x)))))
            if y is None:
                return out
            return out, torch.nn.functional.mse_loss(out, y)

    def build(**settings):
        torch.manual_seed(1)
        return Regression(**settings)

    return build


@pytest.fixture
def data():
    """`data(n)`: n inputs and targets, always the same."""
    import torch

    def draw(count):
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(count, 3, generator=generator)
        return x, torch.randn(count, 1, generator=generator)

    return draw
