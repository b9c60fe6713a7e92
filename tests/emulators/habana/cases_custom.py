"""The SDK's own operators, `torch.ops.hpu.*`, against formulas on the host."""

import torch

from tests.support.strict import zip_strict

MODES = ("lazy", "eager")

OPS = torch.ops.hpu


def packed(values):
    """Numbers of four bits, eight to an int32, the first one lowest."""
    bits = (values.to(torch.int64) & 15).unflatten(-1, (-1, 8))
    total = (bits << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32)


def equal(ours, expected, **tolerance):
    assert ours.is_hpu
    torch.testing.assert_close(ours.cpu(), expected, **tolerance)


def test_four_bit_weights_are_unpacked_and_scaled():
    unsigned = torch.arange(64).reshape(4, 16) % 16
    signed = torch.where(unsigned > 7, unsigned - 16, unsigned)
    words = packed(unsigned).to("hpu")
    scale = torch.rand(4, 16)
    for op, values in {
        OPS.convert_from_uint4: unsigned,
        OPS.convert_from_int4: signed,
    }.items():
        equal(op(words, scale.to("hpu"), None, torch.float32), values * scale)
        shift = torch.rand(4, 16)
        ours = op(words, scale.to("hpu"), shift.to("hpu"), torch.float32)
        equal(ours, (values - shift) * scale)


def test_a_scale_and_a_packed_zero_point_may_be_shared_by_rows():
    values, zero = torch.arange(64).reshape(4, 16) % 16, torch.full((2, 16), 8)
    scale = torch.rand(2, 16)
    ours = OPS.convert_from_uint4(
        packed(values).to("hpu"), scale.to("hpu"), packed(zero).to("hpu"), torch.float32
    )
    equal(ours, (values - 8) * scale.repeat_interleave(2, 0))


def test_triangular_softmax():
    x = torch.randn(2, 5, 5)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = (x * 1.3).masked_fill(hidden, -torch.inf).softmax(-1)
    equal(OPS.scaled_triangular_softmax(x.to("hpu"), 1.3), expected)
    found, *kept = OPS.scaled_triangular_softmax_retain(x.to("hpu"), 1.3)
    equal(found, expected)
    assert torch.equal(OPS.scaled_triangular_softmax(x.to("hpu"), 1.3, *kept), found)


def test_masked_softmax():
    x, mask = torch.randn(3, 4), torch.rand(3, 4)
    ours = OPS.scaled_masked_softmax(x.to("hpu"), mask.to("hpu"), 0.5)
    equal(ours, (x * 0.5 + mask).softmax(-1))
    x, bounds = torch.randn(4, 1, 6), torch.tensor([[1, 5], [0, 2]])
    ours = OPS.scaled_masked_triangular_softmax(
        x.to("hpu"), bounds.to("hpu"), 2.0, 2, True, 0
    )
    expected = torch.zeros(4, 1, 6)
    expected[:2, :, 1:5] = (x[:2, :, 1:5] * 2).softmax(-1)
    expected[2:, :, :2] = (x[2:, :, :2] * 2).softmax(-1)
    equal(ours, expected)


def test_a_cache_takes_positions_from_other_beams():
    cache = torch.arange(4 * 3 * 2.0).reshape(1, 4, 3, 2)
    beams = torch.tensor([(2 << 6) | (0 << 4) | (1 << 2) | 3], dtype=torch.uint8)
    bounds = torch.tensor([1], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    expected = cache.clone()
    expected[0, :, 1:3] = cache[0, [2, 0, 1, 3], 1:3]
    ours = cache.to("hpu")
    found = OPS.kv_reorder_(ours, *(t.to("hpu") for t in (*bounds, beams)))
    assert found is ours
    equal(ours, expected)


def test_fast_functions_and_plain_indexing():
    x = torch.rand(4, 3) + 1
    for name in ("exp", "sqrt", "rsqrt"):
        ours = getattr(OPS, f"{name}_fast_math")(x.to("hpu"))
        equal(ours, getattr(torch, name)(x))
    index = torch.tensor([2, 0])
    equal(OPS.plain_index(x.to("hpu"), [index.to("hpu")]), x[index])


def test_lamb_in_phases_takes_the_steps_of_its_formula():
    weight, gradient = torch.randn(3, 2), torch.randn(3, 2) * 10
    w, g = weight.to("hpu"), gradient.to("hpu")
    divisor = OPS.optimizer_lamb_fused_norm([g], 1.0)
    equal(divisor, gradient.norm().clamp(min=1.0).reshape(1))
    m, v, step = (torch.zeros(3, 2, device="hpu") for _ in range(3))
    lengths = [torch.zeros(1, device="hpu") for _ in range(2)]
    one = torch.ones((), device="hpu")
    OPS.optimizer_lamb_phase1(
        *([g], [w], [m], [v], lengths[:1], lengths[1:], [step], divisor),
        *(1, 0.9, 0.999, 1e-6, one, one, 0.01),
    )
    clipped = gradient / gradient.norm()
    wanted = 0.1 * clipped / ((0.001 * clipped**2).sqrt() + 1e-6) + 0.01 * weight
    equal(step, wanted)
    rate = torch.tensor(-0.1, device="hpu")
    OPS.optimizer_lamb_phase2([w], lengths[1:], lengths[:1], [step], rate, 0.01, False)
    equal(w, weight - 0.1 * wanted * weight.norm() / wanted.norm())


def test_a_mixture_of_experts():
    x, router = torch.randn(6, 4), torch.randn(6, 3)
    weights, table = router.topk(2)
    w1, w2 = torch.randn(3, 4, 5), torch.randn(3, 4, 5)
    w3 = torch.randn(3, 5, 4)
    gated = torch.relu(x @ w1) * (x @ w2)  # experts, tokens, inner
    shares = torch.zeros(6, 3).scatter(1, table, weights)
    expected = ((gated @ w3) * shares.t().unsqueeze(-1)).sum(0)

    def split(matrices, permuted):
        return [(m.t() if permuted else m).to("hpu") for m in matrices]

    operands = x.to("hpu"), table.to("hpu"), weights.to("hpu")
    for permuted in (False, True):
        first, gate, last = (split(w, permuted) for w in (w1, w2, w3))
        choice = permuted, "relu", 0, 2
        ours = OPS.mixture_of_experts(*operands, first, gate, last, *choice)
        equal(ours, expected, rtol=1e-4, atol=1e-4)
        pairs = zip_strict(first, gate)
        both = [torch.cat(pair, 0 if permuted else 1) for pair in pairs]
        ours, most = OPS.mixture_of_experts(*operands, both, last, *choice, True)
        equal(ours, expected, rtol=1e-4, atol=1e-4)
        equal(most, gated.amax((1, 2)), rtol=1e-4, atol=1e-4)
