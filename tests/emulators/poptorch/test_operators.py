"""Operators that PopTorch does not compile are refused by name, all others run."""

import poptorch
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.near import assert_near

REFUSED = {
    "linalg_cholesky_ex": lambda x: torch.linalg.cholesky(x @ x.t()),
    "linalg_solve_triangular": lambda x: torch.linalg.solve_triangular(
        x, x, upper=True
    ),
    "lerp_": lambda x: x.clone().lerp_(x * 0, 0.5),
    "searchsorted": lambda x: torch.searchsorted(x.sort().values, x),
    "grid_sampler_2d": lambda x: F.grid_sample(
        x[None, None], x.view(1, 2, 4, 2), align_corners=False
    ),
    "multinomial": lambda x: torch.multinomial(x.abs(), 2),
    "erfinv": torch.erfinv,
    "_linalg_svd": torch.linalg.svdvals,
    "huber_loss": lambda x: F.huber_loss(x, x * 0),
    "kthvalue": lambda x: x.kthvalue(2).values,
    "tril": lambda x: torch.tril(torch.ones_like(x)),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[None, None], 1),
}
COMPILED = {
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "group norm": lambda x: F.group_norm(x[None], 2),
    "rms norm": lambda x: F.rms_norm(x, (4,)),
    "gelu": F.gelu,
    "finite": lambda x: torch.isfinite(x).float(),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "sums": lambda x: x.cumsum(0) + x.logsumexp(0) + x.std() + x.median(),
    "order": lambda x: x.sort().values + x.topk(4).values.flip(0),
    "choice": lambda x: torch.where(x > 0, x, 0.0).masked_fill(x > 0.5, 1.0),
    "scatter": lambda x: x.scatter_add(0, (x > 0).long(), x),
    "resized": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "padded": lambda x: F.pad(x[None, None], (1, 1, 1, 1), mode="reflect"),
    "constants": lambda x: (
        x * torch.ones(4, 4).tril_(-1) + torch.tril(torch.ones(4, 4))
    ),
    "distance": lambda x: torch.cdist(x, x) + F.cosine_similarity(x, x + 1),
}


class Applied(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.eye(4) + 0.1)

    def forward(self, x):
        return self.function(x @ self.weight)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_lowering_is_refused_by_name(name):
    with pytest.raises(poptorch.Error, match=rf"compiled model: .*aten::{name}\b"):
        poptorch.inferenceModel(Applied(REFUSED[name]))(torch.rand(4, 4))


@pytest.mark.parametrize("name", COMPILED)
def test_what_is_composed_of_operators_of_the_list_runs(name):
    torch.manual_seed(0)
    model, x = Applied(COMPILED[name]), torch.rand(4, 4)
    expected = model(x).detach()
    assert_near(poptorch.inferenceModel(model)(x), expected)


def test_each_is_collected_and_computed_as_the_host_does():
    model = Applied(lambda x: torch.erfinv(x / 4) + torch.tril(x))
    x = torch.rand(4, 4)
    with poptorch.emulation.refusals() as found:
        result = poptorch.inferenceModel(model)(x)
    assert [refusal.operation for refusal in found] == ["erfinv", "tril"]
    assert_near(result, model(x).detach())


def test_numbers_that_half_precision_cannot_hold_are_told():
    large = torch.full((4, 4), -1e9).triu(1)

    def masked(x):
        x = x + large.to("ipu").to(x.dtype)
        x = x.masked_fill(x < 0.5, -1e9) + torch.finfo(x.dtype).min
        return (x + 1e-12) * 1e-12 + 1e-5

    with poptorch.emulation.refusals() as found:
        poptorch.inferenceModel(Applied(masked).half())(torch.rand(4, 4).half())
    assert [refusal.message.partition(" in ")[0] for refusal in found] == [
        "to: 1000000000 is beyond 65504, the largest number",
        "masked_fill: -1000000000 is beyond 65504, the largest number",
        "add: 1e-12 is 0",
    ]


@pytest.mark.parametrize(
    ("message", "function"),
    [
        ("not divisible", lambda x: F.adaptive_avg_pool2d(x[None, None], 3)),
        (
            "non-integer",
            lambda x: F.interpolate(x[None, None], scale_factor=1.5, mode="bilinear"),
        ),
        ("constant expressions", torch.triu),
        ("8 bits", lambda x: x.to(torch.uint8) & 1),
        ("sparse", lambda x: F.embedding(x.long() * 0, x, sparse=True)),
    ],
)
def test_arguments_that_it_does_not_take_are_refused(message, function):
    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(Applied(function))(torch.rand(4, 4))


def test_reads_and_packed_sequences_are_got_past_where_somebody_collects():
    lstm = nn.LSTM(4, 4)

    def packed(x):
        rows = nn.utils.rnn.pack_padded_sequence(x[:, None], torch.tensor([3]))
        out, _ = nn.utils.rnn.pad_packed_sequence(lstm(rows)[0])
        return out.sum() + x.tolist()[0][0] + float(f"{x.mean():.2f}")

    with poptorch.emulation.refusals() as found:
        poptorch.inferenceModel(Applied(packed))(torch.rand(4, 4))
    operations = [refusal.operation for refusal in found]
    assert operations[0] == "_pack_padded_sequence"
    assert operations[-3:] == ["_pad_packed_sequence", "tolist", "__format__"]
