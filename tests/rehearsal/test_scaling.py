"""`devrun check --devices N`: bytes that torch really sends, memory of real ranks."""

import dataclasses
import json
import math
from functools import partial

import pytest
import torch
import yaml

from devrun.devices.resolve import resolve_device
from devrun.models.gpt import GPT as Transformer
from devrun.rehearsal.bench import Measured, Peaks, describe, save
from devrun.rehearsal.scaling import SCHEMA, Forecast, Scaling
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
import os
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
        if self.reads == "step":
            x = x + x[x > 0].sum()
        elif self.reads == "abort":
            os.write(2, b"what(): no more threads\\n")
            os.abort()
        elif x.sum().item():  # of which no shape depends
            x = x + 1
        return self.fc(x.flatten(1))
"""


@pytest.fixture
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
def check(folder, capsys):
    return partial(command, capsys, "check")


def test_the_bytes_are_those_of_rings_in_the_documented_schema(check, folder):
    words = ["--cfg-options", "optimizer_config.cumulative_iters=3", "--json"]
    status, out, err = check("gpt.yaml", "--devices", "16", "--memory", "1GiB", *words)
    assert (status, err) == (0, "")
    data = json.loads(out)
    assert data["schema"] == SCHEMA == "devrun.scaling/5"
    assert data.keys() == {field.name for field in dataclasses.fields(Scaling)}
    ddp, fsdp = data["strategies"]
    assert fsdp.keys() == {field.name for field in dataclasses.fields(Forecast)}
    assert [ddp["strategy"], fsdp["strategy"]] == ["ddp", "fsdp"]
    assert ddp["weights"] > fsdp["weights"] and ddp["gradients"] == ddp["buckets"]
    assert ddp["fits"] and fsdp["fits"] and fsdp["sending"] is None
    assert data["left_out"] == {} and data["computing"] is None
    assert data["micro_batches"] == 3
    assert not (folder / "work_dirs").exists()
    model = Transformer(64, 16, 3, 2, 30, 0.0)
    blocks = [m for m in model.modules() if type(m).__name__ == "Block"]
    inside = [p for block in blocks for p in block.parameters()]
    every = list(model.parameters())

    def size(weights, shards):
        """Each shard has as many rows as the largest."""
        return sum(p[0].nbytes * math.ceil(len(p) / shards) * shards for p in weights)

    assert ddp["sent"] == 2 * 15 / 16 * size(every, 1)
    # whole blocks for the forward and again for the backward pass
    gathers = 3 * (size(every, 16) + size(inside, 16))
    assert fsdp["sent"] == 15 / 16 * (gathers + size(every, 16))


def test_the_words_are_a_table(check):
    status, out, _ = check("gpt.yaml", "--devices", "6", "--memory", "1MiB")
    assert status == 11
    rows = [line.split() for line in out.splitlines()]
    assert {"ddp", "fsdp"} == {row[0] for row in rows if "no" in row}
    assert out.count("not measured") == 1 + sum("no" in row for row in rows)


def test_seconds_are_those_of_the_first_updates_and_of_the_measured_rate(check):
    adapter = resolve_device("cpu")
    adapter.setup(None)
    rates = [("matmul", "64", 2.0), ("all_reduce", "1 MiB", 0.5), ("all_reduce", "", 3)]
    save(
        Peaks(
            device="cpu",
            description=describe(adapter),
            versions={"torch": str(torch.__version__)},
            threads=torch.get_num_threads(),
            measured=[
                Measured(kind, "fp32", shape, rate, rate, rate, "")
                for kind, shape, rate in rates
            ],
            left_out=[],
        )
    )
    words = ["--devices", "2", "--device", "cpu"]
    status, out, err = check("small.yaml", *words, "--json")
    assert status == 0, err
    data = json.loads(out)
    assert 0 < data["computing"] < 60 and "computing" not in data["left_out"]
    for one in data["strategies"]:
        assert one["sending"] == pytest.approx(one["sent"] / 5e8)
    _, out, _ = check("small.yaml", *words)
    assert "not measured" not in out


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
    status, out, err = check("gpt.yaml", "--devices", "2", "--json")
    assert status == 0, err
    rows = json.loads(out)["strategies"]
    (found,) = (row for row in rows if row["strategy"] == "fsdp")
    (folder / "rank.py").write_text(RANK)
    first, second = zygote.start_ranks(["rank.py"], folder, finalize=False)
    (said, wrong), _ = first.communicate(60), second.communicate(60)
    assert first.returncode == 0, wrong
    (line,) = (row for row in said.splitlines() if row.startswith("sizes"))
    weights, gradients, state, peak = map(int, line.split()[1:])
    assert found["weights"] == weights
    assert found["gradients"] == gradients
    assert found["optimizer_state"] == state
    # the loss and the like, of which the trackers see a little more or less
    assert found["peak"] == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["small.yaml", "--devices", "0"], "'0' is not a number of 1 or more"),
        (["small.yaml", "--devices", "cuda"], "--device names one"),
        (["small.yaml", "--device", "64"], "--devices 64 is how many"),
        (["small.yaml", "--devices", "4", "--device", "tpu"], "'tpu'"),
        (["small.yaml", "--devices", "4", "--device", "cpu,hpu"], "one --device"),
        (["--devices", "2", "program.py"], "program.py is a program"),
    ],
)
def test_bad_input_is_one_line(check, words, said):
    found, out, err = check(*words)
    assert (found, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("reads", "said"),
    [
        ("build", "without values, and it reads one"),
        ("step", "without values, and it reads one"),
        ("abort", "its process ended (SIGABRT): what(): no more threads"),
    ],
)
def test_a_model_that_cannot_be_simulated_is_refused(check, folder, reads, said):
    model = {"type": "Odd", "reads": reads}
    (folder / "odd.yaml").write_text(yaml.safe_dump({**CONFIG, "model": model}))
    found, out, err = check("odd.yaml", "--import", "odd", "--devices", "2")
    assert (found, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1
