"""Eager mode: launches are counted, markers do nothing, compiled regions are graphs."""

from __future__ import annotations

import warnings

import habana_frameworks.torch.core as htcore
import torch
from habana_frameworks import emulator
from habana_frameworks.torch.hpex.optimizers import FusedSGD
from torch import nn

HPU = torch.device("hpu")


def launches():
    return emulator.report().totals.get("launch", 0)


def case_each_operator_is_a_launch_and_a_view_is_none():
    x = torch.ones(4).to("hpu")
    assert launches() == 0
    (x + x).view(2, 2).relu()
    assert launches() == 2


def case_a_fused_optimizer_is_one_launch():
    model = nn.Linear(3, 2).to("hpu")
    model(torch.ones(1, 3, device=HPU)).sum().backward()
    emulator.reset()
    FusedSGD(model.parameters(), lr=0.1, momentum=0.9).step()
    assert launches() == 1


def case_markers_do_nothing():
    torch.ones(2, device=HPU) + 1
    htcore.mark_step()
    report = emulator.report()
    assert report.mode == "eager" and "flush" not in report.totals
    assert report.compiled_graphs == 0


def case_every_copy_to_the_host_waits():
    torch.ones(2).to("hpu").cpu()
    assert emulator.report().totals["host_sync"] == 1


def case_data_dependent_operators_are_found_here_too():
    x = torch.ones(2, device=HPU)
    x[x > 0]
    assert [f.what for f in emulator.report().of("dynamic_op")] == [
        "aten::index.Tensor"
    ]


def case_int64_is_native():
    assert torch.tensor([2**40]).to("hpu").item() == 2**40


def case_graphs_are_absent():
    assert not hasattr(torch.hpu, "HPUGraph") and not hasattr(torch.hpu, "ModuleCacher")


def case_compiled_regions_are_graphs():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).to("hpu")
    x = torch.randn(2, 4, device=HPU)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(model, backend="hpu_backend", fullgraph=True)
        out = compiled(x)
    assert torch.equal(out.detach().cpu(), model(x).detach().cpu())
    out.sum().backward()
    assert model[0].weight.grad.is_hpu
    (finding,) = emulator.report().of("compilation")
    assert finding.count == 1 and finding.site.file == __file__
