"""`devrun export --step train`: a whole update as a graph, beside plain PyTorch."""

import json
import runpy
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from devrun.export.importers import refused_by
from devrun.hooks import Hook
from devrun.registry import HOOKS, MODELS
from tests.docs.blocks import ROOT
from tests.support.command import command
from tests.support.shipped import (
    CASES,
    IMAGES,
    TEXT,
    VECTORS,
    model_of,
    output_of,
    samples,
)
from tests.support.strict import zip_strict

SGD = {"type": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}
ADAMW = {"type": "AdamW", "lr": 1e-3, "weight_decay": 0.1}
ADAM = {**ADAMW, "type": "Adam"}
OPTIMIZERS = {"mlp": SGD, "resnet8": SGD, "vit": ADAMW, "gpt": ADAM, "lstm": SGD}
CLIPPED = {"grad_clip": {"max_norm": 0.5}}
SLOW = pytest.mark.slow
EACH = [pytest.param(name, marks=[] if name == "mlp" else SLOW) for name in CASES]


class Ours(nn.Module):
    def __init__(self, activation=torch.relu, dropout=0.0):
        super().__init__()
        self.first, self.layer = nn.Linear(16, 8), nn.Linear(8, 4)
        self.activation, self.drop = activation, nn.Dropout(dropout)

    def forward(self, x):
        return self.layer(self.drop(self.activation(self.first(x))))


@MODELS.register_module()
class Sorting(Ours):
    """With an operator that has no export."""

    def forward(self, x):
        return super().forward(x.cumsum(1))


@MODELS.register_module()
class Largest(Ours):
    """With one that onnxruntime has, and NNFusion has not."""

    def forward(self, x):
        y = super().forward(x)
        return y - y.amax(1, keepdim=True)


@MODELS.register_module()
class Counting(Ours):
    """With a state that is no tensor, which a graph does not have."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


@MODELS.register_module()
class Pooling(nn.Sequential):
    """Windows that overlap, with zeros of a ReLU of which several are the largest."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1),
            nn.AvgPool2d(2, 1, padding=1), nn.Flatten(), nn.Linear(64, 4),
        )  # fmt: skip


@MODELS.register_module()
class Dropping(Ours):
    def __init__(self):
        super().__init__(dropout=0.5)


@HOOKS.register_module()
class Halving(Hook):
    """With another update than the one that is traced."""

    def after_backward(self, runner):
        for parameter in runner.model.parameters():
            parameter.grad.mul_(0.5)


@HOOKS.register_module()
class SavingFirst(Hook):
    """Before an optimizer keeps anything."""

    def before_run(self, runner):
        runner.save_checkpoint("first")


def plain_update(name, state, batch):
    """The weights after one update by PyTorch alone."""
    model = model_of(name, {n[7:]: v for n, v in state.items() if n[:7] == "module."})
    settings = {**OPTIMIZERS[name], "lr": state["lr"].item()}
    kind = getattr(torch.optim, settings.pop("type"))
    optimizer = kind(model.parameters(), **settings)
    for weight, value in model.named_parameters():
        ours = f"optimizer.module.{weight}."
        kept = {n[len(ours) :]: v.clone() for n, v in state.items() if ours in n}
        if "optimizer.step" in state:
            kept["step"] = state["optimizer.step"].clone()
        optimizer.state[value] = kept
    model.train()
    if CASES[name][1] is TEXT:
        loss = model(*batch)["loss"]
    else:
        loss = nn.functional.cross_entropy(output_of(model, batch[0]), batch[1])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    return loss.item(), model.state_dict()


@pytest.mark.parametrize("name", EACH)
def test_the_graph_does_the_update_that_pytorch_does(name, trained, export):
    changes = {"optimizer": OPTIMIZERS[name], "optimizer_config": CLIPPED}
    run = trained(*CASES[name], **changes)
    how = ("--step", "train", "--for", "nnfusion", "--output", "step.onnx")
    status, out, err = export(run, *how)
    assert status == 0, err
    assert "10 updates in onnxruntime compared with the run's" in out
    facts = json.loads(Path("step.onnx.json").read_text())
    assert facts["largest_difference"] < 1e-5
    assert facts["opset"] == 12
    assert not list(refused_by("halo", onnx.load("step.onnx")))
    state = load_file("step.onnx.safetensors")
    given, labels = samples(name, 4), torch.tensor([0, 1, 2, 3])
    batch = (given, given if CASES[name][1] is TEXT else labels)
    session = onnxruntime.InferenceSession("step.onnx")
    given = {**state, **dict(zip_strict(facts["batch"], batch))}
    values = session.run(None, {name: value.numpy() for name, value in given.items()})
    values = dict(zip_strict(facts["outputs"], values))
    loss, expected = plain_update(name, state, batch)
    assert values["loss"] == pytest.approx(loss, abs=1e-5)
    for weight, value in expected.items():
        if weight.endswith(("qkv.bias", "c_attn.bias")):
            continue  # of keys no more than rounding errors, as the command says
        found = torch.from_numpy(values[f"next.module.{weight}"])
        # float32 sums in another order
        torch.testing.assert_close(found, value, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_rounding_that_decides_a_relu_is_told_from_a_wrong_graph(capsys, tmp_path):
    """Of 64 images a batch, some value is nearly 0 before a ReLU now and then."""
    quick = ("--limit-train", "4", "--cfg-options", "runner.max_epochs=1")
    work_dir = str(tmp_path / "work")
    config = str(ROOT / "configs" / "digits" / "resnet8_digits.yaml")
    assert command(capsys, "train", config, "--work-dir", work_dir, *quick)[0] == 0
    words = ("--step", "train", "--output", str(tmp_path / "step.onnx"))
    status, _, err = command(capsys, "export", work_dir, *words)
    assert status == 0, err
    facts = json.loads((tmp_path / "step.onnx.json").read_text())
    assert facts["largest_difference"] < 1e-5
    assert 0 <= facts["updates_parted"] <= facts["updates_compared"]


@pytest.mark.parametrize(
    ("kind", "importer", "what"),
    [
        ("Sorting", "onnxruntime", "an operator without export: cumsum, at "),
        ("Largest", "nnfusion", "nnfusion has no operator ReduceMax, at "),
        ("Counting", "onnxruntime", "differs by "),
        ("Dropping", "halo", "without export: bernoulli, which draws random numbers"),
    ],
)
def test_what_would_not_be_the_update_is_one_line_and_no_file(
    kind, importer, what, trained, export
):
    run = trained({"type": kind}, VECTORS)
    before = sorted(Path().rglob("*"))
    status, _, err = export(run, "--step", "train", "--for", importer)
    (line,) = [one for one in err.splitlines() if one.startswith("devrun: error: ")]
    assert status == 2
    assert what in line
    assert kind == "Counting" or f"{Path(__file__).name}:" in line
    assert sorted(Path().rglob("*")) == before


def test_the_loop_of_the_examples_trains_with_the_step(
    trained, export, monkeypatch, capsys
):
    run = trained(*CASES["mlp"])
    assert export(run, "--step", "train", "--output", "step.onnx")[0] == 0
    monkeypatch.setattr(sys, "argv", ["step_loop.py", "step.onnx", "40"])
    runpy.run_path(str(ROOT / "examples" / "step_loop.py"), run_name="__main__")
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    (checkpoint,) = Path(run).glob("checkpoints/step-*")
    score = {}
    for weights in (str(checkpoint), "trained.safetensors"):
        status, out, err = command(
            capsys, "test", "run.yaml", weights, "--split", "val"
        )
        assert status == 0, err
        score[weights] = float(out.split()[-1])
    assert score["trained.safetensors"] < 0.5 * score[str(checkpoint)]


def test_pooling_is_in_the_step(trained, export):
    run = trained({"type": "Pooling"}, IMAGES)
    how = ("--step", "train", "--for", "nnfusion", "--output", "step.onnx")
    status, _, err = export(run, *how)
    assert status == 0, err
    facts = json.loads(Path("step.onnx.json").read_text())
    assert facts["largest_difference"] < 1e-5
    assert not list(refused_by("halo", onnx.load("step.onnx")))


def test_an_operator_that_only_one_importer_lacks_is_for_the_others(trained, export):
    run = trained({"type": "Largest"}, VECTORS)
    status, _, err = export(run, "--step", "train", "--output", "step.onnx")
    assert status == 0, err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--for", "halo"), "--for is of --step train"),
        (("--step", "train", "--format", "pt2"), "--format pt2 goes not with --step"),
        (("--step", "train", "--opset", "18"), "--opset goes not with --step train"),
    ],
)
def test_flags_of_another_format_are_refused(words, what, export):
    status, _, err = export("run", *words)
    assert status == 2
    assert what in err


@pytest.mark.parametrize(
    ("changes", "source", "what"),
    [
        (
            {"checkpoint_config": {"interval": 1, "save_optimizer": False}},
            "run",
            "has no optimizer state, from which a training step goes on",
        ),
        (
            {"custom_hooks": [{"type": "SavingFirst"}], "optimizer": ADAM},
            "first/step-00000000",
            "an optimizer that has done no update",
        ),
        (
            {"custom_hooks": [{"type": "Halving"}]},
            "run",
            "Halving.after_backward may change gradients",
        ),
    ],
)
def test_a_run_whose_update_would_be_another_is_refused(
    changes, source, what, trained, export
):
    trained(*CASES["mlp"], **changes)
    before = sorted(Path().rglob("*"))
    status, _, err = export(source, "--step", "train", "--output", "step.onnx")
    assert status in (2, 3)
    (line,) = [one for one in err.splitlines() if one.startswith("devrun: error: ")]
    assert what in line
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"optimizer_config": {"cumulative_iters": 2}}, "an update of several batches"),
        ({"optimizer_config": {"precision": "bf16"}}, "an update in bf16"),
        ({"optimizer": {"type": "LBFGS"}}, "that the model, a hook or the optimizer"),
    ],
)
def test_an_update_that_is_not_exported_is_named(changes, what, trained, export):
    run = trained(*CASES["mlp"], **changes)
    status, _, err = export(run, "--step", "train")
    assert status == 2
    assert what in err


def test_a_package_that_is_missing_is_named(trained, export, monkeypatch):
    run = trained(*CASES["mlp"])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    status, _, err = export(run, "--step", "train")
    assert status == 2
    assert "needs the package onnxruntime: pip install 'devrun[onnx]'" in err


HEAD = '<ir_version: 7, opset_import: ["": 12]> g '
SILENT = {
    "nnfusion does not broadcast its inputs (Where)":
        "(bool[2,1] c, float[2,3] x) => (float[2,3] y) { y = Where(c, x, x) }",
    "nnfusion does not broadcast its inputs (Min)":
        "(float[2,3] x, float[3] z) => (float[2,3] y) { y = Min(x, z) }",
    "nnfusion drops all inputs after two (Max)":
        "(float[2] x) => (float[2] y) { y = Max(x, x, x) }",
    "nnfusion swaps paddings that are not symmetric (Conv)":
        "(float[1,1,3,3] x, float[1,1,2,2] w) => (float[1,1,3,3] y) "
        "{ y = Conv <pads = [1,1,0,0]> (x, w) }",
    "nnfusion ignores dilations and ceil_mode (MaxPool)":
        "(float[1,1,3,3] x) => (float[1,1,2,2] y) "
        "{ y = MaxPool <kernel_shape = [2,2], strides = [2,2], ceil_mode = 1> (x) }",
    "nnfusion clamps negative bounds and steps (Slice)":
        "(float[4] x) => (float[3] y) <int64[1] a = {-3}, int64[1] b = {4}> "
        "{ y = Slice(x, a, b) }",
    "nnfusion reduces that axis, not all from it on (Softmax)":
        "(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax <axis = 1> (x) }",
    "nnfusion computes as in evaluation (Dropout)":
        "(float[2] x) => (float[2] y) { y = Dropout(x) }",
    "nnfusion makes integers, whatever the type of the values (OneHot)":
        "(int64[2] x, int64[1] d, float[2] v) => (float[2,3] y) "
        "{ y = OneHot(x, d, v) }",
    "nnfusion takes no boolean constant":
        "(float[1] x) => (float[1] y) <bool[1] c = {1}> { y = Where(c, x, x) }",
    "nnfusion has no operator Reciprocal":
        "(float[1] x) => (float[1] y) { y = Reciprocal(x) }",
    "halo ignores paddings that are an input, and copies (Pad)":
        "(float[2] x, int64[2] p) => (float[4] y) { y = Pad(x, p) }",
    "halo pairs bounds with the sorted axes (Slice)":
        "(float[4,4] x) => (float[3,2] y) <int64[2] a = {1,2}, int64[2] b = {4,4}, "
        "int64[2] d = {1,0}> { y = Slice(x, a, b, d) }",
    "halo has no operator ScatterElements":
        "(float[4] x, int64[4] i) => (float[4] y) { y = ScatterElements(x, i, x) }",
}  # fmt: skip


@pytest.mark.parametrize("reason", SILENT)
def test_what_an_importer_gets_wrong_without_saying_so_is_found(reason):
    model = onnx.parser.parse_model(HEAD + SILENT[reason])
    assert reason in [why for _, why in refused_by(reason.split()[0], model)]


@pytest.mark.parametrize("importer", ["nnfusion", "halo"])
def test_what_is_beside_the_edge_of_each_is_let_through(importer):
    good = (
        "(float[2,3] x, bool[2,3] c) => (float[2,2] y) "
        "<int64[1] a = {1}, int64[1] b = {3}> { z = Where(c, x, x) "
        "s = Softmax <axis = 1> (z) y = Slice(s, a, b, a) }"
    )
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(HEAD + good))
    assert not list(refused_by(importer, model))
