"""What goes into a checkpoint comes back exactly, or is refused by name."""

import collections
import enum
import math
import random

import numpy as np
import pytest
import torch

from devrun.checkpoint import decode_tree, encode_tree, tensorfile
from devrun.errors import CheckpointError
from devrun.files import json_line, parse_json


def round_trip(tree):
    """Through the very bytes that a checkpoint's files would hold."""
    encoded = encode_tree(tree)
    text = json_line(encoded.tree)
    packed = b"".join(bytes(piece) for piece in tensorfile.pieces(encoded.tensors))
    assert len(packed) == tensorfile.size_of(encoded.tensors)
    return decode_tree(parse_json(text), tensorfile.read(packed))


SCALARS = [
    None,
    True,
    0,
    -1,
    2**63 - 1,
    2**63,
    -(2**63),
    -(10**40),
    10**4000,
    0.1,
    -0.0,
    5e-324,
    1.7976931348623157e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "straße \n\x00 \ud800 $tensor",
    b"",
    b"\x00\xff",
    np.float32(0.1),
    np.float64("nan"),
    np.int64(-5),
    np.bool_(True),
    np.complex64(1 + 2j),
]

CONTAINERS = [
    {"$tensor": "not a tensor", "$x": {}},
    {1: "int", "1": "str", 1.5: "float", None: 0, (1, ("a", True)): 2, b"k": 3},
    {"nested": {"deep": [{"$dict": 1}, (), [], {}]}},
    {1, 2, 3},
]

DTYPES = [
    name
    for name in (
        "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 "
        "uint64 bool float8_e4m3fn float8_e5m2 complex64 complex128"
    ).split()
    if hasattr(torch, name)
]


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: repr(value)[:20])
def test_a_scalar_comes_back_as_it_was(value, same):
    assert same(round_trip({"x": [value]}), {"x": [value]})


@pytest.mark.parametrize("value", CONTAINERS, ids=lambda value: type(value).__name__)
def test_a_container_comes_back_as_it_was(value):
    back = round_trip(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3)], ids=str)
def test_a_tensor_of_any_type_keeps_its_bits(name, shape, same):
    dtype = getattr(torch, name)
    size = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    raw = bytearray(random.Random(0).randbytes(size))
    if dtype is torch.bool:
        raw = bytearray(byte % 2 for byte in raw)
    tensor = torch.empty(shape, dtype=dtype)
    if size:
        tensor = torch.frombuffer(raw, dtype=dtype).reshape(shape)
    assert same(round_trip(tensor), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[::2],
        torch.zeros(1).expand(5),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.arange(6.0).reshape(2, 3).requires_grad_(),
    ],
    ids=["transposed", "strided", "expanded", "conjugate", "with gradient"],
)
def test_an_unusual_view_comes_back_equal(tensor, same):
    back = round_trip([tensor])[0]
    assert same(back, tensor.detach().resolve_conj())
    assert not back.requires_grad


def test_one_tensor_in_two_places_is_stored_once_and_comes_back_tied():
    weight = torch.randn(4)
    tree = {"in": weight, "out": weight.view(4), "copy": weight.clone()}
    back = round_trip(tree)
    assert len(encode_tree(tree).tensors) == 2
    assert back["in"] is back["out"]
    assert back["copy"] is not back["in"]


def test_overlapping_views_come_back_equal_in_memory_of_their_own():
    base = torch.arange(6.0)
    back = round_trip({"all": base, "part": base[2:4]})
    assert back["part"].tolist() == [2.0, 3.0]
    back["part"].zero_()
    assert back["all"].tolist() == base.tolist()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="<i2").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(3, dtype=">f4"),
        np.zeros((0, 2)),
        np.array(1.5),
        np.array([1 + 2j]),
    ],
    ids=lambda array: array.dtype.str + str(array.shape),
)
def test_an_array_keeps_type_and_shape(array, same):
    assert same(round_trip({"a": array}), {"a": array})


def test_names_that_collide_in_the_tensor_file_stay_apart(same):
    tree = {
        "a": {"b": torch.zeros(1), "c": torch.ones(2)},
        "a/b": torch.ones(1),
        "a/b#2": torch.full((1,), 2.0),
        "__metadata__": torch.full((1,), 3.0),
        "\ud800": torch.full((1,), 4.0),
        "": torch.full((1,), 5.0),
    }
    assert same(round_trip(tree), tree)


class Colour(enum.IntEnum):
    RED = 1


def cyclic():
    loop = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), r"tree\['x'\]\[0\] is a builtins.object"),
        (Colour.RED, "Colour"),
        (collections.defaultdict(int), "defaultdict"),
        (lambda: None, "function"),
        (np.array([object()]), "object"),
        (np.array(["text"]), "ndarray of <U4"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (torch.zeros(2, 2).to_sparse(), "sparse_coo"),
        (torch.zeros(2, device="meta"), "meta"),
        ({torch.zeros(1): 1}, "tensor as a key"),
        (cyclic(), "deeper than 64"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_saved_is_named_by_its_path(value, reason):
    with pytest.raises(CheckpointError, match=reason) as caught:
        encode_tree({"x": [value]})
    assert "tree['x']" in str(caught.value)
    assert "\n" not in str(caught.value)
