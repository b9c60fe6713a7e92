"""What ordinary models do on the host inside `forward`: the report never breaks it.

Each model below says in comments what the report finds on the line; `compiled:` is
for mode compile, where it differs. Rows are never at a line of devrun's or torch's.
"""

from __future__ import annotations

import inspect
import io
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from devrun.devices.hpu.probes.report import ReportHook
from tests.hpu.runs import MODE, close, device, loader, make, train
from tests.support.observe import Lines

MODES = ("lazy", "eager", "compile")

KINDS = ("host waits", "on the host", "float64")
BESIDES = ("graph break", "compiled again")


class OnHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        host = x.detach().cpu()  # host waits; compiled:
        return torch.from_numpy(np.tanh(host.numpy())).to(x.device)

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 - ctx.saved_tensors[0].tanh() ** 2)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.step(torch.tanh(self.body(x))))


class Steps:
    """What is between the two layers; `h` requires a gradient."""

    def cpu(self, h):
        return h.cpu().exp().softmax(-1).to("hpu")  # host waits

    def numpy(self, h):
        host = h.detach().cpu()  # host waits
        return h * float(host.numpy().mean())

    def tolist(self, h):
        return h * h.detach().mean(0).tolist()[0]  # host waits

    def item(self, h):
        return h * h.mean().item()  # host waits

    def prints(self, h):
        text = io.StringIO()
        print(h, file=text)  # host waits
        return h

    def own_function_on_the_host(self, h):
        return OnHost.apply(h)  # compiled: host waits

    def sparse(self, h):
        places = torch.tensor([[0, 1, 2], [1, 0, 3]])
        matrix = torch.sparse_coo_tensor(
            places, torch.ones(3), (8, 8), check_invariants=True
        ).to(h.device)
        return h + torch.sparse.mm(matrix, h.t()).t()

    def fourier(self, h):
        return torch.fft.fft(h).real  # on the host

    def complex_numbers(self, h):
        z = torch.complex(h, h)
        return (z * z).abs() + h

    def float64(self, h):
        return (h.double() * 2).float()  # float64

    def mask(self, h):
        return h + h[h > 0].sum()  # host waits

    def mask_assigned(self, h):
        h = h.clone()
        h[h > 0] = 0.0  # host waits
        return h

    def eigenvalues(self, h):
        square = (h.t() @ h).detach() + torch.eye(8, device=h.device)
        return h + torch.linalg.eigvalsh(square).mean()  # on the host

    def asserts(self, h):
        assert torch.isfinite(h).all()  # host waits; compiled: on the host
        return h

    def checkpointed(self, h):
        return checkpoint(torch.tanh, h, use_reentrant=False)

    def branch(self, h):
        if torch.isnan(h).any():  # host waits
            return h * 0
        return h


STEPS = {name: step for name, step in vars(Steps).items() if callable(step)}


def run(model, report, **options):
    """The losses, the rows of the report and the log."""
    with Lines() as log:
        runner, losses = make(device(**options), model=model, epochs=1)
        hook = ReportHook(after=3)
        if report:
            runner.register_hook(hook)
        try:
            runner.run([loader(samples=24)], [("train", 1)])
            rows = hook.report.rows() if report else []
            return losses.values, rows, log.text
        finally:
            runner.close()


def marked(*functions):
    """(kind, line) of every comment that names what is found."""
    found = set()
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        for number, line in enumerate(lines, first):
            comment = line.partition("  # ")[2]
            usual, _, compiled = comment.partition("compiled:")
            said = (
                compiled
                if "compiled:" in comment and MODE["mode"] == "compile"
                else usual
            )
            found |= {(kind, number) for kind in KINDS if kind in said}
    return found


def test_what_models_do_on_the_host_is_found_and_never_broken():
    for name, step in STEPS.items():
        kind = type(name, (Base,), {"step": step})
        torch.compiler.reset()
        losses, rows, _ = run(kind(), report=True)
        wrong = [r for r in rows if r.site.line and r.site.file != __file__]
        assert not wrong, (name, wrong)
        found = {(r.kind, r.site.line) for r in rows if r.site.line and r.kind in KINDS}
        extra = OnHost.forward if "own_function_on" in name else step
        assert found == marked(step, extra), (name, rows)
        lines = range(step.__code__.co_firstlineno, step.__code__.co_firstlineno + 8)
        assert all(r.site.line in (0, *lines) for r in rows if r.kind in BESIDES), (
            name,
            rows,
        )
        if MODE["mode"] != "compile":  # it goes the same way, at its own slow pace
            assert run(kind(), report=False)[0] == losses, name


class Bag(nn.Module):
    """An embedding with sparse gradients, and a dense layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.head = nn.Embedding(10, 8, sparse=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.rows((x[:, 0].abs() * 3).long().clamp(max=9)))


def test_a_model_with_sparse_gradients_keeps_torchs_sgd():
    runs = []
    for where in (device(), "cpu"):
        torch.compiler.reset()
        with Lines() as log:
            runs.append(train(where, model=Bag()))
        if where != "cpu":
            assert "FusedSGD takes no sparse gradients" in log.text
    close(*runs)


def test_a_model_in_float64_is_told_once():
    class Double(Base):
        def __init__(self):
            super().__init__()
            self.double()

        def forward(self, x):
            return self.head(self.body(x.double()))

    rows = [r for r in run(Double(), report=True)[1] if r.kind == "float64"]
    named = {r.what: r for r in rows if not r.site.line}
    assert set(named) == {"body.weight, body.bias, head.weight, ..."}, rows
    assert "model.float()" in next(iter(named.values())).remedy
    assert [Path(r.site.file).name for r in rows if r.site.line] == ["cases_host.py"]
