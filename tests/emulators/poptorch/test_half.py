"""Products of halves are those of float32, rounded once, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.near import assert_near
from tests.support.strict import zip_strict

PRODUCTS = {
    "linear": (F.linear, (5, 700), (3, 700), (3,)),
    "matmul": (torch.matmul, (2, 5, 700), (2, 700, 3)),
    "vector": (torch.matmul, (5, 700), (700,)),
    "baddbmm": (torch.baddbmm, (2, 9, 3), (2, 9, 400), (2, 400, 3)),
    "conv2d": (F.conv2d, (2, 40, 6, 6), (4, 40, 3, 3), (4,)),
    "conv_transpose1d": (F.conv_transpose1d, (2, 40, 6), (40, 4, 3)),
    "attention": (F.scaled_dot_product_attention, *[(2, 2, 60, 8)] * 3),
}
"""A function and the shapes of its input and its parameters."""


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_halves_is_the_float_one_rounded(name):
    import poptorch

    product, *shapes = PRODUCTS[name]
    generator = torch.Generator().manual_seed(3)
    x, *weights = (torch.randn(shape, generator=generator).half() for shape in shapes)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(w.clone() for w in weights)

        def forward(self, given):
            out = product(given, *self.weights)
            return out, poptorch.identity_loss(out.float(), "sum")

    model = Model()
    step = torch.optim.SGD(model.parameters(), lr=1.0)
    out, _ = poptorch.trainingModel(model, poptorch.Options(), step)(x)

    wide = [w.float().requires_grad_() for w in weights]
    expected = product(x.float(), *wide)
    expected.sum().backward()
    assert_near(out, expected, 1)
    for weight, before, exact in zip_strict(model.weights, weights, wide):
        assert weight.dtype == torch.float16
        updated = before.float() - exact.grad.half().float()
        # Attention's gradients are made from its result, which is rounded by then.
        assert_near(weight, updated, 2 if name == "attention" else 1)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB"])
def test_an_update_of_half_weights_is_made_in_float(kind):
    """In half precision the eps of Adam and the squares of small gradients are zero."""
    import poptorch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4).half())

        def forward(self, x):
            return poptorch.identity_loss(self.weight * x, "sum")

    model = Model()
    extra = {} if kind in ("Adam", "AdamW", "LAMB") else {"momentum": 0.9}
    optimizer = getattr(poptorch.optim, kind)(model.parameters(), lr=0.125, **extra)
    training = poptorch.trainingModel(model, poptorch.Options(), optimizer)
    x = torch.tensor([1.0, -1.0, 2.0**-14, 0.0]).half()
    for _ in range(2):
        training(x)
    assert torch.isfinite(model.weight).all()
    state = optimizer.state_dict()["ipu_state"]
    assert {v.dtype for k, v in state.items() if k.startswith("Accl")} == {torch.float}
    if kind == "Adam":  # two steps of the learning rate, by the sign of the gradient
        expected = torch.tensor([0.75, 1.25, 0.75, 1.0])
        torch.testing.assert_close(model.weight.detach().float(), expected)
