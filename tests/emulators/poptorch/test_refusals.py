"""Refusals that are collected: the compilation goes on where it would end."""

from pathlib import Path

import poptorch
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.near import assert_near

HERE = Path(__file__)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Refused(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.register_buffer("last", torch.zeros(3))
        self.scale = torch.full((3,), 2.0)

    def forward(self, x, y):
        out = self.fc(x)
        if out.mean() > 1e6:  # branch
            raise AssertionError("the values of the first micro-batch are smaller")
        rows = int((y > 0).sum())  # number
        assert 0 < rows < 8
        out = out * self.scale  # constant
        kept = out[y > 0]  # mask
        assert tuple(kept.shape) == (rows, 3)
        self.last = out.detach()[0]  # assignment
        out.retain_grad()  # gradient
        out = Doubled.apply(out)  # function
        weight = torch.ones(3)
        loss = F.cross_entropy(out, y, weight=weight)  # weight
        return poptorch.identity_loss(loss + kept.mean() * 0, "none")


MARKS = {
    "__bool__": "branch",
    "__int__": "number",
    "mul": "constant",
    "__getitem__": "mask",
    "assignment": "assignment",
    "retain_grad": "gradient",
    "Doubled": "function",
    "cross_entropy": "weight",
}


def line_of(mark):
    lines = HERE.read_text().splitlines()
    (number,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"  # {mark}")]
    return number


def trainer_of(model, **options):
    made = poptorch.Options()
    made.Training.gradientAccumulation(options.get("accumulation", 1))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return poptorch.trainingModel(model, made, sgd)


def batch(seed):
    torch.manual_seed(seed)
    return torch.randn(8, 4), torch.randint(0, 3, (8,))


def test_each_is_collected_with_its_line_and_the_rest_runs():
    model = Refused()
    with poptorch.emulation.refusals() as found:
        trainer = trainer_of(model)
        losses = [float(trainer(*batch(seed))) for seed in range(4)]
    assert all(loss == loss for loss in losses)
    assert {r.operation for r in found} == set(MARKS)
    assert all(r.training for r in found)
    for refusal in found:
        own = [line for file, line in refusal.stack if file == str(HERE)]
        assert own[0] == line_of(MARKS[refusal.operation])
    assert torch.equal(model.last, torch.zeros(3))  # it stays what it was
    assert all("is not supported" in r.message for r in found if "bool" in r.operation)


def test_without_the_context_the_first_is_raised():
    with poptorch.emulation.refusals():
        pass
    with pytest.raises(poptorch.Error, match="aten::bool is not supported"):
        trainer_of(Refused())(*batch(0))


def test_a_graph_without_refusals_computes_what_it_did():
    def losses():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))

        class Loss(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = model

            def forward(self, x, y):
                return F.cross_entropy(self.net(x), y)

        trainer = trainer_of(Loss())
        return [float(trainer(*batch(seed))) for seed in range(3)]

    plain = losses()
    with poptorch.emulation.refusals() as found:
        assert losses() == plain
    assert found == []


def test_a_model_that_is_captured_again_goes_the_same_way():
    """Its constants too, so that a run that resumes is the same."""

    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 1)
            self.taken = []

        def forward(self, x):
            self.taken.append(float(x.sum()))
            return poptorch.identity_loss(self.fc(x), "mean")

    model = Constant()
    with poptorch.emulation.refusals():
        for seed in (0, 1):
            trainer = trainer_of(model)
            trainer(batch(seed)[0])
            trainer.destroy()
    assert model.taken == [float(batch(0)[0].sum())] * 2


def test_what_no_operation_is_to_blame_for():
    class Piped(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x, y):
            with poptorch.Block(ipu_id=0):
                x = self.first(x)
            with poptorch.Block(ipu_id=1):
                return F.cross_entropy(self.second(x), y)

    poptorch.emulation.set_memory_limit(10)
    try:
        with poptorch.emulation.refusals() as found:
            trainer_of(Piped())(*batch(0))
    finally:
        poptorch.emulation.set_memory_limit(None)
    assert [r.operation for r in found] == ["loops", "memory"]
    assert "gradientAccumulation" in found[0].message


@pytest.mark.parametrize("view", [lambda x: x.view(-1, 3), lambda x: x.t().t()])
def test_a_view_may_be_changed_in_place(view):
    """Autograd looks at what it is a view of, which is on no real device either."""

    class Changed(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x, y):
            x = view(self.fc(x))
            x[:, :1] = 0
            return F.cross_entropy(x, y)

    torch.manual_seed(0)
    model = Changed()
    x, y = batch(0)
    wanted = float(model(x, y).detach())
    assert_near(float(trainer_of(model)(x, y)), wanted)


def test_a_loop_that_only_values_would_end_is_cut_and_what_was_found_is_kept():
    class Suppressed(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 1)

        def forward(self, x):
            scores = self.fc(x).squeeze(1)
            order = scores.argsort()
            total = scores.sum()
            while order.numel() > 0:
                total = total + scores[order[0]]
                order = order[1:][scores[order[1:]] < 0.5]  # shape
            return poptorch.identity_loss(total, "sum")

    with poptorch.emulation.refusals() as found:
        with pytest.raises(poptorch.Error, match="a loop whose end depends on values"):
            trainer_of(Suppressed())(batch(0)[0])
    lines = {refusal.stack[0][1] for refusal in found}
    assert line_of("shape") in lines
