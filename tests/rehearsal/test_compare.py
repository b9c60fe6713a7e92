"""`devrun compare`: planted divergences are found where they were planted."""

from __future__ import annotations

import json
import sys

import pytest
import torch
import yaml

from devrun.rehearsal.ulps import ulps
from tests.support import zygote
from tests.support.command import command

SOURCE = """
import torch
from torch import nn
from devrun.registry import MODELS


class Attention(nn.Module):
    def __init__(self, plant):
        super().__init__()
        self.qkv, self.plant = nn.Linear(8, 24), plant

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        at = torch.arange(4, device=x.device)
        mask = at[:, None] >= at
        if self.plant == "mask":
            mask = mask.t()
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Half(nn.Linear):
    def forward(self, x):
        low = torch.bfloat16
        out = nn.functional.linear(x.to(low), self.weight.to(low), self.bias.to(low))
        return out.to(x.dtype)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


class Unaveraged(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, Scaled.apply(self.weight), self.bias)


@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self, plant=""):
        super().__init__()
        self.attention = Attention(plant)
        self.drop = nn.Dropout(0.3)
        kinds = {"half": Half, "gradient": Unaveraged}
        self.hidden = kinds.get(plant, nn.Linear)(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.attention(x.unflatten(1, (-1, 8))).mean(1)
        return self.head(torch.tanh(self.hidden(self.drop(x))))
"""
CONFIG = {
    "model": {"type": "Planted"},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 8,
        "workers_per_gpu": 0,
        "train": {
            "type": "SyntheticClassification", "num_samples": 64, "shape": [32],
        },
    },
    "optimizer": {"type": "SGD", "lr": 0.05, "momentum": 0.9},
    "runner": {"type": "EpochBasedRunner", "max_epochs": 2},
}  # fmt: skip
ADAM = {"type": "Adam", "lr": 0.01}


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "dr_planted.py").write_text(SOURCE)
    yield
    if sys.modules.pop("dr_planted", None) is not None:
        from devrun.registry import MODELS

        del MODELS.module_dict["Planted"]


@pytest.fixture
def config(tmp_path):
    def write(name, **changes):
        (tmp_path / name).write_text(yaml.safe_dump({**CONFIG, **changes}))
        return name

    return write


@pytest.fixture
def compare(capsys):
    def run(*words):
        return command(capsys, "compare", *words, "--import", "dr_planted")

    return run


OPERATORS = {
    "attention": "where the second runs aten.t.default",
    "hidden": "where the second runs aten._to_copy.default",
    "loss": "where the second runs aten.sum.dim_IntList",
}


@pytest.mark.parametrize(
    ("optimizer", "changes", "found"),
    [
        (ADAM, {"optimizer": {**ADAM, "eps": 1e-6}}, (1, "update")),
        (
            CONFIG["optimizer"],
            {"optimizer": {**CONFIG["optimizer"], "dampening": 0.1}},
            (2, "update"),
        ),
        (
            CONFIG["optimizer"],
            {"lr_config": {"policy": "step", "step": 3, "by_epoch": False}},
            (4, "update"),
        ),
        (
            CONFIG["optimizer"],
            {"model": {"type": "Planted", "plant": "mask"}},
            (1, "activation", "attention"),
        ),
        (
            CONFIG["optimizer"],
            {"model": {"type": "Planted", "plant": "half"}},
            (1, "activation", "hidden"),
        ),
        (
            CONFIG["optimizer"],
            {"model": {"type": "Planted", "plant": "gradient"}},
            (1, "gradient", "hidden.weight"),
        ),
        (
            CONFIG["optimizer"],
            {"loss": {"type": "CrossEntropyLoss", "label_smoothing": 0.1}},
            (1, "loss", "loss"),
        ),
    ],
    ids=["epsilon", "momentum", "schedule", "mask", "half", "gradient", "loss"],
)
def test_a_planted_divergence_is_found_where_it_is(
    config, compare, optimizer, changes, found
):
    first = config("first.yaml", optimizer=optimizer)
    second = config("second.yaml", **{"optimizer": optimizer, **changes})
    status, out, err = compare(first, second, "--json", "--device", "cpu")
    parting = json.loads(out)["parting"]
    assert (status, err) == (10, "")
    assert tuple(parting.values())[: len(found)] == found
    operator = OPERATORS.get(found[-1])
    assert (operator or "") in (parting["operator"] or "")
    assert parting["difference"] > parting["tolerance"] > 0
    assert parting["ulps"] > 1


@pytest.fixture
def apart(tmp_path):
    """The same in a process of its own, as an emulator stays in one."""

    def run(*words):
        words = ["-m", "devrun", "compare", *words, "--import", "dr_planted"]
        done = zygote.run([*words, "--emulate"], cwd=tmp_path, timeout=120)
        return done.returncode, done.stdout

    return run


@pytest.mark.parametrize("pair", ["cpu,hpu", "cpu,ipu"])
def test_devices_that_agree_agree(config, apart, pair):
    status, out = apart(config("first.yaml"), "--devices", pair, "--steps", "3")
    assert status == 0 and "they agree: " in out
    assert "only in one of them" not in out


MMCV_HOOK = """
from mmcv.runner import HOOKS, Hook


@HOOKS.register_module()
class Quiet(Hook):
    pass
"""


def test_modules_written_for_mmcv_are_compared(config, apart, tmp_path):
    (tmp_path / "quiet.py").write_text(MMCV_HOOK)
    hook = {"custom_hooks": [{"type": "Quiet"}]}
    words = [config(name, **hook) for name in ("a.yaml", "b.yaml")]
    words += ["--import", "quiet", "--device", "cpu", "--steps", "1"]
    assert apart(*words)[0] == 2
    status, out = apart(*words, "--mmcv")
    assert status == 0 and "they agree: " in out


@pytest.mark.parametrize("words", [("check", "none.yaml"), ("export", "none")])
def test_every_command_with_the_flag_for_mmcv_honours_it(words):
    done = zygote.run(["-m", "devrun", *words, "--mmcv"], timeout=120)
    assert done.stderr.startswith("devrun: note: imports of mmcv.runner and mmcv.utils")


def test_precisions_that_agree_agree(config, compare):
    words = ("--precisions", "fp32,bf16", "--steps", "3", "--device", "cpu")
    status, out, _ = compare(config("first.yaml"), *words)
    assert status == 0 and "fp32 and bf16: 3 updates" in out


@pytest.mark.parametrize("pair", ["fp32,bf16", "bf16,fp32"])
def test_what_cancels_in_the_finer_precision_only_is_no_divergence(
    config, compare, pair
):
    """Softmax ignores the bias of the keys: Adam scales the noise of its gradient."""
    name = config("first.yaml", optimizer=ADAM)
    status, out, _ = compare(name, "--precisions", pair, "--device", "cpu")
    assert status == 0, out


def test_the_epsilon_of_a_fused_optimizer_is_found(config, apart):
    name = config("first.yaml", optimizer=ADAM)
    status, out = apart(name, "--devices", "cpu,hpu")
    assert status == 10
    assert "they part at update 1: update of " in out and "epsilon" in out


def test_parts_that_only_one_has_are_named(config, compare):
    model = {"type": "torch.nn.Linear", "in_features": 32, "out_features": 4}
    config("first.yaml"), config("other.yaml", model=model)
    status, out, _ = compare("first.yaml", "other.yaml", "--steps", "1")
    assert status == 10 and "they part at update 1: loss of loss" in out
    assert "only in one of them: gradient head.bias of step 1" in out


def test_the_json_of_other_shapes_is_strict(config, compare):
    (
        config("first.yaml"),
        config("other.yaml", data={**CONFIG["data"], "samples_per_gpu": 4}),
    )
    status, out, _ = compare("first.yaml", "other.yaml", "--steps", "1", "--json")
    found = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert status == 10 and found["parting"]["difference"] == "Infinity"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("first.yaml",), "nothing to compare: give two CONFIGs"),
        (("first.yaml", "--devices", "cpu"), "--devices takes two with a comma"),
        (("first.yaml", "--devices", "cpu,tpu"), "'tpu'"),
        (("first.yaml", "--precisions", "fp32,fp7"), "fp7"),
        (("first.yaml", "other.yaml", "--steps", "0"), "--steps must be 1 or more"),
        (("first.yaml", "no.yaml"), "no.yaml"),
    ],
)
def test_bad_input_is_one_line(config, compare, words, said):
    config("first.yaml")
    model = {"type": "torch.nn.Linear", "in_features": 32, "out_features": 4}
    config("other.yaml", model=model)
    status, out, err = compare(*words)
    assert (status, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
)
def test_ulps_count_the_numbers_between(dtype):
    one = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    step = torch.finfo(dtype).eps
    assert ulps(one, one, dtype) == 0
    assert ulps(one, one * (1 + 3 * step), dtype) == 3
    zero = torch.zeros(1, dtype=torch.float64)
    assert ulps(zero, -zero, dtype) == 0
    tiny = torch.finfo(dtype).smallest_normal
    assert ulps(zero + tiny, zero - tiny, dtype) > 2**5
    assert ulps(zero + float("nan"), zero, dtype) != ulps(zero, zero, dtype)
