"""`devrun export` of whole models, by real programs in the systems that read them."""

import json
from pathlib import Path

import onnxruntime
import pytest
import torch
from torch import nn

from devrun import EpochBasedRunner
from devrun.checkpoint import read_checkpoint
from devrun.registry import MODELS
from tests.support.shipped import CASES, TEXT, VECTORS, model_of, output_of, samples
from tests.support.strict import zip_strict

EMA = [{"type": "EMAHook", "momentum": 0.5}]


@MODELS.register_module()
class Branching(nn.Module):
    """What no tracer follows: the way through it depends on a value."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x):
        y = self.layer(x)
        return y if y.sum() > 0 else y * 2


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_computes_what_the_model_does_for_any_batch(name, trained, export):
    run = trained(*CASES[name])
    status, out, err = export(run, "--format", "onnx", "--output", "model.onnx")
    assert status == 0, err
    assert "largest difference" in out
    facts = json.loads(Path("model.onnx.json").read_text())
    ((given, described),) = facts["inputs"].items()
    assert described["shape"][0] == "batch"
    fixed = {"gpt": "length", "lstm": 16}  # torch's LSTM is traced for one length
    assert described["shape"][1] == fixed.get(name, described["shape"][1])
    assert facts["data"]["type"] == CASES[name][1]["type"]
    (checkpoint,) = Path("run/checkpoints").glob("step-*")
    model = model_of(name, read_checkpoint(checkpoint)["model"])
    session = onnxruntime.InferenceSession(
        "model.onnx", providers=["CPUExecutionProvider"]
    )
    for count in (1, 7):
        batch = samples(name, count)
        values = session.run(None, {given: batch.numpy()})
        (found,) = [
            v
            for v, n in zip_strict(values, facts["outputs"])
            if n in ("output", "logits")
        ]
        with torch.no_grad():
            expected = output_of(model, batch).numpy()
        # float32 sums in another order
        assert abs(found - expected).max() <= 1e-5 * max(1.0, abs(expected).max())


GPT2 = {
    "type": "transformers.AutoModelForCausalLM.from_config",
    "config": {
        "type": "transformers.GPT2Config", "vocab_size": 256, "n_positions": 16,
        "n_embd": 16, "n_layer": 1, "n_head": 2, "use_cache": False,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
    },
}  # fmt: skip


ONNX = pytest.param(["--format", "onnx"], marks=pytest.mark.slow)


@pytest.mark.parametrize("how", [ONNX, ["--step", "train"]])
def test_a_model_of_hugging_face_is_exported_too(how, trained, export):
    pytest.importorskip("transformers")
    run = trained(GPT2, TEXT)
    status, out, err = export(run, *how, "--output", "model.onnx")
    assert status == 0, err
    assert float(out.split("largest difference ")[1].split()[0]) < 1e-5
    facts = json.loads(Path("model.onnx.json").read_text())
    assert facts["model"] == "GPT2LMHeadModel"


def test_a_program_has_the_averaged_weights_unless_told_otherwise(trained, export):
    run = trained(*CASES["mlp"], custom_hooks=EMA)
    batch, outputs = samples("mlp", 3), {}
    for words in ((), ("--weights", "trained")):
        how = ("--format", "pt2", "--output", "model.pt2", "--overwrite", *words)
        status, _, err = export(run, *how)
        assert status == 0, err
        facts = json.loads(Path("model.pt2.json").read_text())
        program = torch.export.load("model.pt2").module()
        outputs[facts["weights"]] = program({"x": batch})["output"]
    (checkpoint,) = Path("run/checkpoints").glob("step-*")
    found = read_checkpoint(checkpoint)
    with torch.no_grad():
        trained_model = model_of("mlp", found["model"])(batch)
        averaged = found["hooks"]["EMAHook"]["model"]
        averaged_model = model_of("mlp", {**found["model"], **averaged})(batch)
    torch.testing.assert_close(outputs["trained"], trained_model)
    torch.testing.assert_close(outputs["evaluated"], averaged_model)
    assert not torch.allclose(trained_model, averaged_model)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", ["pt2", "aoti"])
def test_programs_of_torch_do_the_same(form, name, trained, export):
    run = trained(*CASES[name])
    status, _, err = export(run, "--format", form, "--output", "model.pt2")
    assert status == 0, err
    if form == "aoti":
        loaded = torch._inductor.aoti_load_package("model.pt2")
    else:
        loaded = torch.export.load("model.pt2").module()
    ((given, _),) = json.loads(Path("model.pt2.json").read_text())["inputs"].items()
    (checkpoint,) = Path("run/checkpoints").glob("step-*")
    model = model_of(name, read_checkpoint(checkpoint)["model"])
    batch = samples(name, 5)
    with torch.no_grad():
        found, expected = loaded({given: batch}), output_of(model, batch)
    (found,) = [found[key] for key in ("output", "logits") if key in found]
    # float32 sums in another order
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "expected", "what"),
    [
        (("--format", "onnx", "--opset", "12"), 2, "not 12; leave --opset out"),
        (("--format", "pt2", "--opset", "18"), 2, "--opset is of --format onnx"),
        (("--format", "pt2", "--weights", "evaluated"), 3, "no averaged weights"),
        (("--format", "onnx", "--output", "model.pt2"), 3, "must end in .onnx"),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_no_file(
    words, expected, what, trained, export
):
    run = trained(*CASES["mlp"])
    before = sorted(Path().rglob("*"))
    status, _, err = export(run, *words)
    assert status == expected
    (line,) = [one for one in err.splitlines() if one.startswith("devrun: error: ")]
    assert what in line
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("how", "beside"),
    [
        (["--format", "onnx"], "model.onnx.json"),
        (["--step", "train"], "model.onnx.json"),
        (["--step", "train"], "model.onnx.safetensors"),
    ],
)
def test_what_is_beside_the_file_is_not_written_over(how, beside, trained, export):
    run = trained(*CASES["mlp"])
    Path(beside).mkdir()
    before = sorted(Path().rglob("*"))
    status, _, err = export(run, *how, "--output", "model.onnx", "--overwrite")
    assert status == 3
    assert f"{beside!r} exists; give another --output" in err.splitlines()[-1]
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("how", [["--format", "onnx"], ["--step", "train"]])
def test_a_checkpoint_without_its_config_is_refused(how, tmp_path, export):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    runner = EpochBasedRunner(
        model, optimizer=optimizer, device="cpu", work_dir=str(tmp_path)
    )
    saved = runner.save_checkpoint(str(tmp_path / "checkpoints"))
    runner.close()
    before = sorted(tmp_path.rglob("*"))
    status, _, err = export(saved, *how)
    assert status == 3
    assert "holds no config of a run with data" in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_that_cannot_be_traced_is_named_with_its_line(trained, export):
    run = trained({"type": "Branching"}, VECTORS)
    status, _, err = export(run, "--format", "pt2", "--output", "model.pt2")
    assert status == 2
    assert "Branching as pt2: it cannot be traced: " in err
    assert f"{Path(__file__).name}:" in err
    assert not list(Path().glob("model*"))
