"""What ordinary models do on the host inside `forward`: the report never breaks it.

Each model below says in comments what the report finds on the line; `compiled:` is
for mode compile, where it differs. Rows are never at a line of devrun's or torch's.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from devrun.hooks import Hook
from devrun.rehearsal.check.hpu.remedies import GENERAL, remedy_for
from devrun.rehearsal.check.hpu.report import ReportHook
from devrun.rehearsal.check.hpu.watch import OpWatch
from tests.hpu.runs import MODE, close, device, loader, make, train
from tests.support.observe import Lines

MODES = ("lazy", "eager", "compile")

KINDS = ("host waits", "on the host", "float64")
BESIDES = ("graph break", "compiled again")
SAYS = logging.Logger("tests.hpu")
SAYS.addHandler(logging.StreamHandler(io.StringIO()))


class Rectified(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.saved_tensors[0] > 0)


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

    def to_cpu(self, h):
        host = h.to("cpu")  # host waits
        return F.layer_norm(host, (8,)).to("hpu")

    def to_float64_on_the_host(self, h):
        host = h.to("cpu", torch.float64)  # host waits
        return host.square().float().to("hpu")

    def numpy(self, h):
        host = h.detach().cpu()  # host waits
        return h * float(host.numpy().mean())

    def data_of_a_copy(self, h):
        host = h.cpu()  # host waits
        return h + float(np.asarray(host.data).mean())

    def tolist(self, h):
        return h * h.detach().mean(0).tolist()[0]  # host waits

    def item(self, h):
        return h * h.mean().item()  # host waits

    def as_float(self, h):
        return h * float(h.mean().detach())  # host waits

    def as_bool(self, h):
        flag = bool((h > 0).any())  # host waits
        return h * 2 if flag else h

    def as_int(self, h):
        return h * (1 + int(h.detach().abs().max() > 5))  # host waits

    def length(self, h):
        return h / len(h)

    def deepcopy(self, h):
        return h + copy.deepcopy(h.detach())

    def prints(self, h):
        text = io.StringIO()
        print(h, file=text)  # host waits
        return h

    def logs(self, h):
        SAYS.warning("%s", h)  # host waits
        return h

    def pickles(self, h):
        data = pickle.dumps(h.detach())  # host waits
        return h + pickle.loads(data).to(h.device)

    def saves(self, h):
        file = io.BytesIO()
        torch.save({"h": h}, file)  # host waits
        return h

    def gradient_hook(self, h):
        h.register_hook(lambda grad: grad * 0.5)
        return h

    def own_function(self, h):
        return Rectified.apply(h)

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

    def float64_of_numpy(self, h):
        half = torch.tensor(np.full(8, 0.5)).to(h.device)  # float64
        return (h * half).float()

    def view_of_a_parameter(self, h):
        return h + self.body.weight.view(-1)[:8]

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

    def index_add(self, h):
        rows = torch.arange(len(h), device=h.device) % 2
        return h + torch.zeros(2, 8, device=h.device).index_add(0, rows, h).mean(0)

    def checkpointed(self, h):
        return checkpoint(torch.tanh, h, use_reentrant=False)

    def gradient_inside(self, h):
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(h.sum(), self.body.bias, create_graph=True)
        return h + slope.sum()

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


class OnHostLoss(Base):
    """Logits and labels go to the host, where the loss is."""

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))

    def train_step(self, data, optimizer):
        logits, labels = self(data[0]).cpu(), data[1].cpu()
        loss = F.cross_entropy(logits, labels)
        return {"loss": loss, "log_vars": {"host": loss}, "num_samples": len(labels)}


def test_a_loss_on_the_host_trains_with_the_report():
    losses, rows, _ = run(OnHostLoss(), report=True)
    assert losses == run(OnHostLoss(), report=False)[0]
    assert {r.what for r in rows} >= {"copy to host"}


class CompilesItself(Base):
    """Has one part compiled, in mode eager: all of it, or an error of torch's."""

    def __init__(self):
        super().__init__()
        settings = {"backend": "hpu_backend", "fullgraph": True}
        self.step = torch.compile(lambda h: torch.relu(h * 2) + 1, **settings)


def test_what_a_model_compiles_itself_is_compiled_under_the_report():
    if MODE["mode"] != "eager":
        return
    from habana_frameworks import emulator

    made = []
    for report in (False, True):
        torch.compiler.reset()
        before = emulator.report().compiled_graphs
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of itself as it compiles
            losses = run(CompilesItself(), report)[0]
        made.append((losses, emulator.report().compiled_graphs - before))
    assert made[0] == made[1] and made[0][1] == 2  # forward and backward


class Copies(Hook):
    """Reads the weights and the loss after each update."""

    def after_train_iter(self, runner):
        for parameter in runner.model.parameters():
            parameter.cpu()  # THE WEIGHTS
        runner.outputs["loss"].cpu()  # THE LOSS


def test_copies_in_hooks_are_found():
    lines, first = inspect.getsourcelines(Copies)
    runner, _ = make(device(), epochs=1)
    runner.register_hook(Copies())
    hook = ReportHook(after=3)
    runner.register_hook(hook)
    runner.run([loader(samples=24)], [("train", 1)])
    runner.close()
    found = {
        lines[r.site.line - first].split("# ")[1].strip(): r.times
        for r in hook.report.rows()
    }
    assert found == {"THE WEIGHTS": 24, "THE LOSS": 6}


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


def test_float64_of_the_data_set_is_told():
    inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(0)).double()
    data = torch.utils.data.TensorDataset(inputs, torch.arange(24) % 3)

    class Narrow(Base):
        def forward(self, x):
            return self.head(self.body(x.float()))

    runner, _ = make(device(), model=Narrow(), epochs=1)
    hook = ReportHook(after=3)
    runner.register_hook(hook)
    runner.run([torch.utils.data.DataLoader(data, batch_size=4)], [("train", 1)])
    runner.close()
    (row,) = [r for r in hook.report.rows() if r.kind == "float64"]
    assert (row.what, str(row.site), row.times) == (
        "copy to the device",
        "the data loader",
        6,
    )


def test_a_layer_of_torchs_is_not_called_a_line_of_devruns():
    model = nn.Sequential(nn.Linear(4, 8), nn.AdaptiveMaxPool1d(4), nn.Linear(4, 3))
    rows = [r for r in run(model, report=True)[1] if r.kind == "on the host"]
    assert rows and all(not r.site.line for r in rows), rows


def test_operators_without_a_kernel_have_a_remedy_of_their_own():
    from habana_frameworks._emulation.plans import plan_of

    common = (
        "linalg_eig linalg_qr _linalg_eigh _linalg_svd linalg_inv_ex _linalg_solve_ex "
        "_linalg_det cholesky_inverse _fft_r2c _fft_c2c histc _embedding_bag im2col "
        "col2im grid_sampler_2d_backward adaptive_max_pool2d max_unpool2d mode "
        "unique_consecutive digamma _standard_gamma _pdist_backward _cdist_backward "
        "batch_norm_update_stats _fused_adam_ _assert_async.msg renorm "
        "_amp_update_scale_ special_i1 upsample_trilinear3d_backward"
    )
    for name in common.split():
        packet = getattr(torch.ops.aten, name.split(".")[0])
        overload = name.partition(".")[2] or packet.overloads()[0]
        plan = plan_of(getattr(packet, overload))
        assert not plan.supported, name
        remedy = remedy_for("on the host", plan.full_name)
        assert remedy != GENERAL["on the host"], name
    assert "mask" not in remedy_for("on the host", "aten::index_reduce_")
    assert re.match(
        "multiply by the mask", remedy_for("host waits", "aten::index.Tensor")
    )


def test_the_watch_takes_tensors_of_every_kind():
    with OpWatch() as watch, contextlib.suppress(NotImplementedError):
        watch.begin([torch.ones(2, device="meta")])
        ragged = torch.nested.nested_tensor(
            [torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged
        )
        (ragged * 2).sum()
        torch.ones(2, 3, device="meta").double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this layout is a prototype
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).to("meta") * 2
    assert [(name, Path(site.file).name) for name, site in watch.wide] == [
        ("aten::_to_copy", "cases_host.py")
    ]
