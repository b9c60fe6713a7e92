"""bf16 and fp16 with loss scaling; the CPU can do both."""

import logging
import math
import re

import pytest
import torch
from torch import nn

from devrun.cli.main import main
from devrun.devices.cpu import CPUAdapter
from devrun.torch_features import autocast_dtype
from tests.support.cpu import Prepared, batch, same, weights


class Dtypes(nn.Module):
    """Notes in which dtype its matrix product was done."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 3)
        self.seen = []

    def forward(self, x):
        y = self.linear(x)
        self.seen.append(y.dtype)
        return y


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_forward_runs_in_the_asked_dtype_and_weights_stay_fp32(precision, dtype):
    run = Prepared(Dtypes(), precision=precision)
    run.step()
    run.step()
    run.adapter.eval_step(run.model, batch())
    assert run.module.seen == [dtype] * 3
    assert run.module.linear.weight.dtype == torch.float32
    assert autocast_dtype("cpu") is None


def test_gradients_are_unscaled_for_hooks_and_clipping():
    seen = []
    run = Prepared(precision="fp16", loss_scale=1024.0, grad_clip={"max_norm": 1e9})
    outputs = run.step(on_grads=lambda: seen.append(run.module[0].weight.grad.norm()))
    exact = Prepared(grad_clip={"max_norm": 1e9})
    reference = exact.step()
    assert float(seen[0]) == pytest.approx(
        float(exact.module[0].weight.grad.norm()), rel=0.02
    )
    assert float(outputs.log_vars["grad_norm"]) == pytest.approx(
        float(reference.log_vars["grad_norm"]), rel=0.02
    )


def test_an_overflow_leaves_the_update_out_and_halves_the_scale():
    run = Prepared(precision="fp16", loss_scale={"init_scale": 2.0**40})
    before = weights(run.module)
    run.step()
    assert same(weights(run.module), before)
    assert run.adapter.state_dict()["scaler"]["scale"] == 2.0**39


def test_a_fixed_scale_stays_fixed_through_an_overflow():
    run = Prepared(precision="fp16", loss_scale=2.0**40)
    run.step()
    assert run.adapter.state_dict()["scaler"]["scale"] == 2.0**40


def test_the_scale_is_restored_before_or_after_prepare():
    first = Prepared(precision="fp16", loss_scale={"init_scale": 2.0**40})
    first.step()
    state = first.adapter.state_dict()
    later = Prepared(precision="fp16")
    later.adapter.load_state_dict(state)
    assert later.adapter.state_dict()["scaler"]["scale"] == 2.0**39
    from devrun.devices.cpu import CPUAdapter

    early = CPUAdapter.from_config({})
    early.load_state_dict(state)
    run = Prepared(adapter=early, precision="fp16")
    assert run.adapter.state_dict()["scaler"]["scale"] == 2.0**39


def test_a_nan_loss_is_not_mistaken_for_an_overflow():
    from devrun.errors import DivergedError

    run = Prepared(precision="fp16")
    x, y = batch()
    with pytest.raises(DivergedError, match="nan"):
        run.step((x * math.nan, y))


PROCESSORS = {
    "flags : fpu avx2 f16c avx512f": ("bf16", "fp16"),
    "flags : fpu avx512f avx512_bf16": ("fp16",),
    "flags : avx512_fp16 amx_bf16 amx_tile": (),
    "Features : fp asimd bf16 fphp asimdhp": (),
    "Features : fp asimd": ("bf16", "fp16"),
    "nothing of use": (),
}


@pytest.mark.parametrize("line", PROCESSORS)
def test_a_precision_without_instructions_is_told_of(
    line, tmp_path, monkeypatch, caplog, capsys
):
    slow = PROCESSORS[line]
    told = tmp_path / "cpuinfo"
    told.write_text(f"processor : 0\nmodel name : Some CPU\n{line}\n\nprocessor : 1\n")
    monkeypatch.setattr("devrun.devices.cpu.CPUINFO", told)
    (found,) = CPUAdapter.list_devices()
    assert found.slow_dtypes == slow
    assert set(found.dtypes) == {"fp32", "bf16", "fp16"} - set(slow)
    for precision in ("fp32", "bf16", "fp16"):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "devrun"):
            Prepared(precision=precision)
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == (precision in slow)
        assert all(f"precision {precision!r} on a CPU without" in one for one in said)
    assert main(["devices"]) == 0
    listed = capsys.readouterr().out
    listed = re.split(r"^cpu ", listed, flags=re.M)[1]  # others may be registered
    assert ("no instructions for" in listed) == bool(slow)
    assert ("fp32 bf16" in listed) == ("bf16" not in slow)
