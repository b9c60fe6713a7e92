"""A model's layers as torchinfo draws them, where it is installed."""

import pytest
from torch import nn

from devrun.models.layers import layers_of


def test_layers_are_drawn_by_it():
    pytest.importorskip("torchinfo")
    drawn = layers_of(nn.Sequential(nn.Linear(16, 8).requires_grad_(False)))
    assert "Layer (type:depth-idx)" in drawn
    row = next(line for line in drawn.splitlines() if "Linear: 1-1" in line)
    assert row.split()[-1] == "False"
    assert "136" in row
