"""The host's random streams go on exactly where they were saved."""

import random

import numpy as np
import pytest
import torch

from devrun.checkpoint import (
    decode_tree,
    encode_tree,
    host_rng_state,
    set_host_rng_state,
)
from devrun.errors import CheckpointError


def draw():
    return (
        [random.random(), random.gauss(0, 1)],
        [float(np.random.rand()), float(np.random.randn())],
        torch.randn(3).tolist() + torch.randperm(5).tolist(),
    )


def test_all_streams_go_on():
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    draw()  # an odd number of gaussians leaves one waiting in each stream
    encoded = encode_tree(host_rng_state())
    state = decode_tree(encoded.tree, encoded.tensors)
    expected = [draw() for _ in range(3)]
    random.seed(7)
    np.random.seed(8)
    torch.manual_seed(9)
    set_host_rng_state(state)
    assert [draw() for _ in range(3)] == expected


@pytest.mark.parametrize(
    "change",
    [
        {"torch": b"AAAA"},
        {"torch": "*"},
        {"python": (3, (1,), None)},
        {"python": (3, ("x",) * 625, None)},
        {"numpy": ("MT19937", np.zeros(3, "u4"), 0, 0, 0.0)},
        {"numpy": ("MT19937", np.zeros(624, "u4"), 1 << 20, 0, 0.0)},
        {"numpy": ("os", np.zeros(624, "u4"), 0, 0, 0.0)},
        {"numpy": None},
    ],
    ids=str,
)
def test_a_malformed_state_leaves_every_stream_alone(change):
    state = {**host_rng_state(), **change}
    draw()
    before = str(host_rng_state())
    with pytest.raises(CheckpointError, match="cannot be restored") as caught:
        set_host_rng_state(state)
    assert str(host_rng_state()) == before
    assert "\n" not in str(caught.value)


def test_a_missing_stream_is_named():
    state = host_rng_state()
    del state["numpy"]
    with pytest.raises(CheckpointError, match="numpy"):
        set_host_rng_state(state)
