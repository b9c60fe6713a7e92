"""Eager mode: launches are counted, markers do nothing, compiled regions are graphs."""

import warnings

import habana_frameworks.torch.core as htcore
import torch
from habana_frameworks import emulator
from habana_frameworks.torch.hpex.optimizers import FusedSGD
from torch import nn

from tests.support.near import assert_near

MODES = ("eager",)

HPU = torch.device("hpu")


def launches():
    return emulator.report().totals.get("launch", 0)


def test_each_operator_is_a_launch_and_a_view_is_none():
    x = torch.ones(4).to("hpu")
    assert launches() == 0
    (x + x).view(2, 2).relu()
    assert launches() == 2


def test_a_fused_optimizer_is_one_launch():
    model = nn.Linear(3, 2).to("hpu")
    model(torch.ones(1, 3, device=HPU)).sum().backward()
    emulator.reset()
    FusedSGD(model.parameters(), lr=0.1, momentum=0.9).step()
    assert launches() == 1


def test_markers_do_nothing():
    torch.ones(2, device=HPU) + 1
    htcore.mark_step()
    report = emulator.report()
    assert report.mode == "eager" and "flush" not in report.totals
    assert report.compiled_graphs == 0


def test_every_copy_to_the_host_waits():
    torch.ones(2).to("hpu").cpu()
    assert emulator.report().totals["host_sync"] == 1


def test_data_dependent_operators_are_found_here_too():
    x = torch.ones(2, device=HPU)
    x[x > 0]
    assert [f.what for f in emulator.report().of("dynamic_op")] == [
        "aten::index.Tensor"
    ]


def test_int64_is_native():
    assert torch.tensor([2**40]).to("hpu").item() == 2**40


def test_graphs_are_absent():
    assert not hasattr(torch.hpu, "HPUGraph") and not hasattr(torch.hpu, "ModuleCacher")


class Ramp(nn.Module):
    """Adds the number of its row to each row; then, if asked, what breaks a region."""

    def __init__(self, trouble=None):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.trouble = trouble

    def forward(self, x):
        y = self.first(x).relu()
        y = y + torch.arange(x.shape[0], device=x.device)[:, None]
        if self.trouble == "break":
            torch._dynamo.graph_break()
        if self.trouble == "host":  # no kernel, forward or backward
            y = torch.digamma(y.abs() + 1)
        return self.last(y) + x


def passes(trouble, sizes):
    """For each batch: launches and compilations of forward, those of backward."""
    torch.compiler.reset()
    model = Ramp(trouble).to("hpu")
    compiled = torch.compile(model, backend="hpu_backend", fullgraph=trouble != "break")
    found = []
    for size in sizes:
        x = torch.randn(size, 4, device=HPU)
        ones = torch.ones(size, 4, device=HPU)
        emulator.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = compiled(x)
        forward = counts()
        model.zero_grad(set_to_none=True)
        out.backward(ones)
        found.append((forward, tuple(map(int.__sub__, counts(), forward))))
        expected = model(x).detach()
        assert_near(out, expected)
        assert model.first.weight.grad.is_hpu
    return found


def counts():
    totals = emulator.report().totals
    return totals.get("launch", 0), totals.get("compilation", 0)


def test_a_compiled_region_is_one_launch_and_one_for_its_backward():
    assert passes(None, [2, 2]) == [((1, 1), (1, 1)), ((1, 0), (1, 0))]
    passes(None, [3])
    forward, backward = emulator.report().of("compilation")
    assert {forward.site.file, backward.site.file} == {__file__}


def test_each_shape_of_a_compiled_region_is_compiled_once():
    found = passes(None, [2, 3, 5, 7, 5, 3])
    once, again = ((1, 1), (1, 1)), ((1, 0), (1, 0))
    assert found == [once, once, once, once, again, again]


def test_a_graph_break_splits_a_compiled_region():
    assert passes("break", [2, 2]) == [((2, 2), (2, 2)), ((2, 0), (2, 0))]


def test_an_operator_on_the_host_splits_a_compiled_region():
    assert passes("host", [2, 2]) == [((2, 2), (2, 2)), ((2, 0), (2, 0))]
    fallbacks = {f.what for f in emulator.report().of("cpu_fallback")}
    assert fallbacks == {"aten::digamma", "aten::polygamma"}


def test_what_is_not_compiled_is_a_launch_for_each_operator_still():
    compiled = torch.compile(nn.Linear(4, 4).to("hpu"), backend="hpu_backend")
    x = torch.randn(2, 4, device=HPU)
    compiled(x).sum().backward()
    compiled(x)
    emulator.reset()
    loss = (compiled(x) * 2).exp()
    assert launches() == 3
    loss.sum().backward()
    # sum, its backward, exp's, mul's, the region's, two gradients added
    assert launches() == 3 + 1 + 1 + 1 + 1 + 1 + 2
