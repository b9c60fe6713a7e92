"""Floats that two ways of computing the same agree on.

A processor with wider registers adds the terms of a sum in another order, and each
addition rounds: what two code paths compute differs by some roundings, elsewhere by
others. Only the same code run twice gives the same bits.
"""

from collections.abc import Mapping

import torch

from tests.support.strict import zip_strict


def assert_near(found, expected, roundings=200):
    """Assert that the floats of two trees differ by no more than their rounding.

    The tolerance is `roundings` times the eps of the dtype, of the largest number in
    `expected`: a small element may be the difference of large ones, whose roundings it
    has. Some updates of a small model make a few dozen of them; a sample that counts
    twice, or an update that is missing, makes a thousand times as many.

    Args:
        found, expected: numbers, tensors, arrays, and dicts and sequences of them. A
            number of Python's counts as float32, in which models compute. What is no
            float has to be equal.
        roundings: how many may add up.
    """
    pairs = list(_pairs(found, expected, "it"))
    largest = max((float(theirs.abs().max()) for *_, theirs in pairs), default=0.0)
    for name, ours, theirs in pairs:
        assert ours.shape == theirs.shape, name
        allowed = roundings * max(torch.finfo(t.dtype).eps for t in (ours, theirs))
        off = float((ours.double() - theirs.double()).abs().max())
        assert off <= allowed * largest, f"{name} is off by {off:g} of {largest:g}"


def _pairs(found, expected, name):
    if isinstance(expected, Mapping):
        assert found.keys() == expected.keys(), name
        for key, value in expected.items():
            yield from _pairs(found[key], value, f"{name}[{key!r}]")
    elif isinstance(expected, (list, tuple)) and not _is_row(expected):
        for i, pair in enumerate(zip_strict(found, expected)):
            yield from _pairs(*pair, f"{name}[{i}]")
    else:
        ours, theirs = (torch.as_tensor(v).detach().cpu() for v in (found, expected))
        if theirs.is_floating_point() and theirs.numel():
            yield name, ours, theirs
        else:
            assert torch.equal(ours, theirs), name


def _is_row(values):
    return all(isinstance(value, (int, float)) for value in values)
