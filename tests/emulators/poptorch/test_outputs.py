"""What a call returns: shapes by output mode, types, structures, losses."""

import collections
import itertools

import poptorch
import pytest
import torch


class Rows(torch.nn.Module):
    """Returns its input (one row a micro-batch), a scalar of it, and a constant."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        loss = poptorch.identity_loss(self.weight * x, "sum")
        return x + self.weight, x.sum(), "text", loss


def expected(mode, x, iterations, steps, replicas, micro):
    blocks = x.reshape(iterations, steps, replicas, micro)
    if mode == poptorch.OutputMode.All:
        return blocks.reshape(-1, micro)
    if mode == poptorch.OutputMode.Final:
        return blocks[-1, -1]
    if mode == poptorch.OutputMode.Sum:
        return blocks.sum((0, 1))
    return blocks[1::2].reshape(-1, micro)


@pytest.mark.parametrize("mode", ["All", "Final", "Sum", "EveryN"])
@pytest.mark.parametrize("loops", list(itertools.product((1, 2, 3), repeat=3)))
def test_output_modes(mode, loops):
    iterations, steps, replicas = loops
    mode = poptorch.OutputMode[mode]
    if mode == poptorch.OutputMode.EveryN and iterations < 2:
        iterations = 2
    opts = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    opts.autoRoundNumIPUs(True).outputMode(mode, 2)
    opts.Training.gradientAccumulation(steps)
    model = Rows()
    sgd = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.arange(float(iterations * steps * replicas * 2))
    rows, scalar, text, _ = poptorch.trainingModel(model, opts, sgd)(x)
    wanted = expected(mode, x, iterations, steps, replicas, 2)
    assert torch.equal(rows, wanted.flatten())
    if len(wanted) == 1:
        assert scalar.shape == ()
    else:
        assert torch.equal(scalar, wanted.sum(1))
    assert text == "text"


class Wide(torch.nn.Module):
    def forward(self, a, b):
        return a * 2, b * 2


def test_sixty_four_bits_come_back_as_thirty_two():
    a, b = poptorch.inferenceModel(Wide())(
        torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.float64)
    )
    assert (a.dtype, b.dtype) == (torch.int32, torch.float32)


def test_outputs_refuse_backward(make, data):
    _, loss = poptorch.trainingModel(make())(*data(4))
    assert loss.grad_fn is None
    with pytest.raises(poptorch.Error, match="cannot be called explicitly"):
        loss.backward()


def test_structures_are_rebuilt():
    point = collections.namedtuple("point", "x y")

    class Nested(torch.nn.Module):
        def forward(self, t):
            return {"b": t + 1, "a": [point(t, t * 2), None, 3]}

    out = poptorch.inferenceModel(Nested())(torch.ones(2))
    assert list(out) == ["b", "a"]
    assert type(out["a"][0]).__name__ == "point"
    assert torch.equal(out["a"][0].y, torch.full((2,), 2.0))
    assert out["a"][1:] == [None, 3]


class Losses(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.kind = kind

    def forward(self, x):
        out = self.weight * x
        if self.kind == "none":
            return out.mean()
        a = torch.nn.functional.mse_loss(out, x)
        b = torch.nn.functional.l1_loss(out, x * 2)
        if self.kind == "two":
            return a + b
        return poptorch.identity_loss(a + b, "mean")


def test_a_loss_is_needed():
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph"):
        poptorch.trainingModel(Losses("none"))(torch.ones(2))


def test_two_independent_losses_are_refused():
    with pytest.raises(poptorch.Error, match="Multiple independent losses"):
        poptorch.trainingModel(Losses("two"))(torch.ones(2))


def test_a_wrapped_sum_of_losses_is_one():
    model = Losses("wrapped")
    poptorch.trainingModel(model)(torch.ones(2))
    assert not torch.equal(model.weight, torch.ones(2))


def test_a_loss_need_not_be_returned_and_none_sums():
    class Silent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            poptorch.identity_loss(self.weight * x, reduction="none")
            return x

    model = Silent()
    poptorch.trainingModel(
        model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0)
    )(torch.tensor([0.25, 0.5]))
    assert torch.equal(model.weight.detach(), torch.tensor([0.75, 0.5]))


def test_reductions_are_three():
    with pytest.raises(AssertionError, match="Unsupported reduction"):
        poptorch.identity_loss(torch.ones(1), "median")
