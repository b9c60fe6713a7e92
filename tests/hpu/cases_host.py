"""What ordinary models do on the host inside `forward`.

Each model below says in comments what a check finds on the line; `compiled:` is
for mode compile, where it differs. It is never at a line of devrun's or torch's.
"""

import inspect
import io

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.hpu.runs import MODE, Counting, close, device, loader, make, train
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


def found_in(model):
    """(kind, file, line) of what is counted; line 0 where it is nobody's."""
    runner, _ = make(device(), model=model, epochs=1)
    counting = Counting()
    runner.register_hook(counting)
    try:
        runner.run([loader(samples=24)], [("train", 1)])
        places = [(f.kind, *(f.site or ":0").rsplit(":", 1)) for f in counting.findings]
    finally:
        runner.close()
    return [(kind, file, int(line)) for kind, file, line in places]


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


def test_what_models_do_on_the_host_is_found():
    for name, step in STEPS.items():
        kind = type(name, (Base,), {"step": step})
        torch.compiler.reset()
        rows = found_in(kind())
        assert all(file in ("", __file__) for _, file, _ in rows), (name, rows)
        found = {(kind, line) for kind, _, line in rows if line and kind in KINDS}
        extra = OnHost.forward if "own_function_on" in name else step
        assert found == marked(step, extra), (name, rows)
        first = step.__code__.co_firstlineno
        lines = [line for kind, _, line in rows if kind in BESIDES]
        assert set(lines) <= {0, *range(first, first + 8)}, (name, rows)


class Bag(nn.Module):
    """An embedding with sparse gradients, and a dense layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.head = nn.Embedding(10, 8, sparse=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.rows((x[:, 0].abs() * 3).long().clamp(max=9)))


def test_gradients_that_would_be_sparse_are_dense_on_the_device():
    runs = []
    for where in (device(), "cpu"):
        torch.compiler.reset()
        with Lines() as log:
            runs.append(train(where, model=Bag()))
        if where != "cpu":
            assert "module.rows makes dense gradients" in log.text
    close(*runs)
