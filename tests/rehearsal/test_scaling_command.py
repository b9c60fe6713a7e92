"""`devrun check --devices N`: tables, JSON, memory of real ranks, bad input."""

from __future__ import annotations

import dataclasses
import json
from functools import partial

import pytest
import yaml

from devrun.rehearsal.scaling import SCHEMA, Prediction, RankMemory, Scaling
from tests.cli.conftest import CONFIG
from tests.support import zygote
from tests.support.command import command

MODEL = {"type": "GPT", "vocab_size": 64, "block_size": 16, "n_layer": 3}
MODEL |= {"n_head": 2, "n_embd": 30, "dropout": 0.0}
DATA = {"type": "TextCorpus", "files": "text.txt", "block_size": 16}
TEXT = "".join(chr(32 + i * i % 31) for i in range(2000))
GPT = {
    **{key: CONFIG[key] for key in ("lr_config", "runner", "log_config", "device")},
    "model": MODEL,
    "data": {"samples_per_gpu": 4, "train": DATA},
    "optimizer": {"type": "AdamW", "lr": 0.001},
    "parallel": {"type": "fsdp", "mesh": {"shard": 4}, "wrap": "Block"},
}
ODD = """
import torch
from torch import nn
from devrun.registry import MODELS

@MODELS.register_module()
class Odd(nn.Module):
    def __init__(self, reads):
        super().__init__()
        if reads == "build":
            torch.rand(3).tolist()
        self.fc, self.reads = nn.Linear(16, 4), reads

    def forward(self, x):
        if self.reads == "step" and x.sum().item():
            x = x + 1
        return self.fc(x.flatten(1))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "gpt.yaml").write_text(yaml.safe_dump(GPT))
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(CONFIG))
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "odd.py").write_text(ODD)
    (tmp_path / "program.py").write_text("import torch\nprint(torch.ones(1))\n")
    return tmp_path


@pytest.fixture
def check(capsys):
    return partial(command, capsys, "check")


def names(kind):
    return {field.name for field in dataclasses.fields(kind)}


def test_the_json_has_the_documented_schema(check, folder):
    words = ["--devices", "16", "--compute", "5ms", "--memory", "600MiB", "--json"]
    status, out, err = check("gpt.yaml", *words)
    assert (status, err) == (0, "")
    data = json.loads(out)
    assert data["schema"] == SCHEMA == "devrun.scaling/1"
    assert data.keys() == names(Scaling)
    assert {frozenset(one) for one in data["predictions"]} == {
        frozenset(names(Prediction))
    }
    assert {frozenset(one) for one in data["memory"]} == {frozenset(names(RankMemory))}
    assert data["link"]["name"] == "dgx-h100"
    assert "tensor 8 does not divide the 2 heads" in data["left_out"].pop("tensor")
    assert data["left_out"] == {}
    assert data["compute"]["seconds"] == 0.005
    counts = {}
    for one in data["predictions"]:
        counts.setdefault(one["strategy"], []).append(one["devices"])
    every = [1, 2, 4, 8, 16]
    assert counts == {"ddp": every, "fsdp": every[1:], "hybrid": [16]}
    by_strategy = {one["strategy"]: one for one in data["memory"]}
    ddp, fsdp, hybrid = (by_strategy[name] for name in ("ddp", "fsdp", "hybrid"))
    assert ddp["weights"] > hybrid["weights"] > fsdp["weights"]
    assert ddp["gradients"] == ddp["buckets"] == data["gradients"]
    assert all(one["fits"] for one in data["memory"])
    assert not (folder / "work_dirs").exists()


@pytest.mark.slow
def test_matrices_are_divided_inside_a_box(check):
    words = ["--cfg-options", "model.n_head=8", "model.n_embd=32", "--link", "gaudi2"]
    words += ["--devices", "16", "--compute", "5ms", "--json"]
    status, out, err = check("gpt.yaml", *words)
    assert status == 0, err
    data = json.loads(out)
    assert data["left_out"] == {}
    rows = {one["strategy"]: one for one in data["memory"]}
    tensor, ddp = rows["tensor"], rows["ddp"]
    assert (tensor["shard"], tensor["tensor"]) == (2, 8)
    for kind in ("weights", "gradients", "optimizer_state"):
        assert ddp[kind] / 16 < tensor[kind] < ddp[kind] / 2
    # of the samples of 8 devices an eighth of the heads and of the MLP
    assert ddp["activations"] < tensor["activations"] < 8 * ddp["activations"]
    sums = [one for one in data["predictions"] if one["strategy"] == "tensor"]
    assert [one["devices"] for one in sums] == [2, 4, 8, 16]
    assert data["advice"].startswith("parallel: {type: ")


def test_the_words_are_two_tables_and_an_advice(check):
    words = ["--devices", "6", "--compute", "1TFLOP/s", "--link", "1us,1GB/s"]
    status, out, _ = check("gpt.yaml", *words, "--memory", "1MiB")
    assert status == 11
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows if row and row[0].isdecimal()] == [
        "1",
        "2",
        "4",
        "6",
    ]
    assert {row[-1] for row in rows if row[:1] in (["ddp"], ["fsdp"])} == {"no"}
    assert rows[-1][:3] == ["do:", "none", "fits:"]
    assert "at 1e+12 FLOP/s, given" in out


RANK = """
import sys
import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from devrun.models.gpt import GPT
from devrun.models.step_module import StepModule
from devrun.parallel.fsdp import FSDP
from devrun.parallel.mesh import Mesh
from devrun.parallel.options import ParallelOptions

dist.init_process_group("gloo")
model = GPT(64, 16, 3, 2, 30, 0.0)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
options = ParallelOptions(type="fsdp")
step = StepModule(model)
FSDP(options, Mesh(options), torch.device("cpu")).apply(step, optimizer)
x = torch.randint(64, (4, 16))
tracker = FSDPMemTracker(model, optimizer)
tracker.track_inputs((x,))
for _ in range(2):
    with tracker:
        model(x, x)["loss"].backward()
        gradients = sum(p.grad.to_local().nbytes for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        tracker.reset_mod_stats()
weights = sum(p.to_local().nbytes for p in model.parameters())
(peak,) = tracker.get_tracker_snapshot("peak").values()
state = [t for each in optimizer.state.values() for t in each.values()]
state = sum(getattr(t, "to_local", lambda t=t: t)().nbytes for t in state)
print("sizes", weights, gradients, state, peak["Total"])
dist.destroy_process_group()
"""


def test_a_rank_takes_what_one_of_two_real_ones_takes(check, folder):
    words = ["--devices", "2", "--compute", "5ms", "--link", "nvlink4", "--json"]
    status, out, err = check("gpt.yaml", *words)
    assert status == 0, err
    (found,) = (m for m in json.loads(out)["memory"] if m["strategy"] == "fsdp")
    (folder / "rank.py").write_text(RANK)
    first, second = zygote.start_ranks(["rank.py"], folder, finalize=False)
    (said, wrong), _ = first.communicate(60), second.communicate(60)
    assert first.returncode == 0, wrong
    (line,) = (row for row in said.splitlines() if row.startswith("sizes"))
    weights, gradients, state, peak = map(int, line.split()[1:])
    assert found["weights"] == weights
    assert found["gradients"] == gradients
    assert found["optimizer_state"] == state
    assert found["peak"] == pytest.approx(peak, rel=0.02)


def test_the_time_of_one_is_measured_where_it_is_not_known(check):
    status, out, err = check("small.yaml", "--devices", "1", "--json")
    assert status == 0, err
    data = json.loads(out)
    assert "timed here, with 8 samples" in data["compute"]["how"]
    assert data["compute"]["seconds"] > 0
    # two linear layers, forward, and all but the first input's gradient
    assert data["compute"]["flops"] == 2 * 8 * (2 * 16 * 8 + 3 * 8 * 4)


POD = "ipu-pod16"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--devices", "0"], 2, "'0' is not a number of 1 or more"),
        (["--devices", "-2"], 2, "'-2' is not a number of 1 or more"),
        (["--devices", "cuda"], 2, "--device names one"),
        (["--devices", "1000000"], 2, "--devices must be 1 to 4096, got 1000000"),
        (["--device", "64"], 2, "--devices 64 is how many"),
        (["--link", "gaudi3"], 2, "--link is for --devices N; add that"),
        (["--compute", "5ms"], 2, "--compute is for --devices N; add that"),
        (["--devices", "4", "--compute", "-5ms"], 2, "expected one argument"),
        (["--devices", "4", "--compute=0s"], 2, "neither a time such as 120ms"),
        (["--devices", "4", "--link", "gaudi4"], 2, "did you mean 'gaudi"),
        (["--devices", "4", "--link=-1us,1GB/s"], 2, "a latency of 0 or more"),
        (["--devices", "32", "--link", POD], 2, "joins 16 devices at the most"),
        (["--devices", "4", "--device", "tpu"], 2, "'tpu'"),
        (["--devices", "4", "--device", "cpu", "--device", "hpu"], 2, "one --device"),
    ],
)
def test_bad_input_is_one_line(check, words, status, said):
    found, out, err = check("small.yaml", *words)
    assert (found, out) == (status, "")
    assert said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("reads", ["build", "step"])
def test_a_model_that_needs_values_is_refused(check, folder, reads):
    model = {"type": "Odd", "reads": reads}
    (folder / "odd.yaml").write_text(yaml.safe_dump({**CONFIG, "model": model}))
    words = ["--import", "odd", "--devices", "2", "--compute", "1ms"]
    found, out, err = check("odd.yaml", *words)
    assert (found, out) == (2, "")
    assert "without values, and it reads one" in err
    assert len(err.splitlines()) == 1


def test_a_program_is_refused(check):
    found, out, err = check("--devices", "2", "program.py")
    assert (found, out, len(err.splitlines())) == (2, "", 1)
    assert "program.py is a program" in err
