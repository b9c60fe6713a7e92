"""What `devrun check --device cuda` finds from a CPU: planted faults, and none left.

A line that ends in `#! kind: what` is where a finding of that name must be; the line
`#> text` below it has the remedy, which takes its place in the second run.
"""

from __future__ import annotations

import json
import re

import pytest
import yaml

from devrun.cli.main import main

HEAD = """
import copy
import torch
from torch import nn
from torch.nn import functional as F
from devrun.hooks import Hook
from devrun.registry import DATASETS, HOOKS, MODELS
"""
CONFIG = {
    "custom_imports": {"imports": ["planted"]},
    "model": {"type": "Planted"},
    "loss": {"type": "CrossEntropyLoss"},
    "data": {
        "samples_per_gpu": 8,
        "workers_per_gpu": 0,
        "train": {"type": "SyntheticClassification", "num_samples": 48},
        "val": {"type": "SyntheticClassification", "num_samples": 8, "offset": 48},
    },
    "optimizer": {"type": "AdamW", "lr": 0.01},
    "lr_config": {"policy": "fixed"},
    "runner": {"type": "EpochBasedRunner", "max_epochs": 2},
    "evaluation": {"metric": "accuracy"},
}
EVERY = ("data", "hook", "no gradient", "checkpoint")
_MARK = re.compile(r" +#! (.+)$", re.MULTILINE)


class Planted:
    """A program with faults, beside its config."""

    def __init__(self, folder, source, config):
        self.folder, self.source = folder, HEAD + source
        self.config = {**CONFIG, **config}

    def mended(self, **config):
        """The same with the remedies in place of the faults."""
        lines: list[str] = []
        for line in self.source.splitlines():
            indent, mark, remedy = line.partition("#> ")
            if mark:
                lines[-1] = "" if remedy == "-" else indent + remedy
                line = ""  # the numbers of the other lines stay
            lines.append(_MARK.sub("", line))
        found = Planted(self.folder, "", {**self.config, **config})
        found.source = "\n".join(lines) + "\n"
        return found

    @property
    def marks(self):
        """(kind, what, line) of each fault."""
        for number, line in enumerate(self.source.splitlines(), 1):
            for mark in filter(None, [_MARK.search(line)]):
                for name in mark[1].split("; "):
                    kind, _, what = name.partition(": ")
                    yield kind, what, number


@pytest.fixture
def plant(tmp_path):
    def made(source, **config):
        return Planted(tmp_path, source, config)

    return made


@pytest.fixture
def check(capsys):
    """`check(planted, *words)` -> the status, and each device's result."""

    def run(planted, *words, device="cuda"):
        (planted.folder / "planted.py").write_text(planted.source)
        path = planted.folder / "planted.yaml"
        path.write_text(yaml.safe_dump(planted.config))
        devices = [word for name in device.split() for word in ("--device", name)]
        words = [str(path), "--trust-config", "--json", *devices, *words]
        capsys.readouterr()
        status = main(["check", *words])
        result = json.loads(capsys.readouterr().out)
        assert not any(each["ended"] for each in result["devices"])
        return status, {each["device"]: each for each in result["devices"]}

    return run


def findings(result, *kinds):
    """Those of `kinds`, or all but what `check` says of every device."""
    return [
        each
        for each in result["findings"]
        if (each["kind"] in kinds if kinds else each["kind"] not in EVERY)
    ]


def named(result, *kinds):
    """(kind, what, line) of the findings."""
    return {
        (each["kind"], each["what"], int((each["site"] or ":0").rpartition(":")[2]))
        for each in findings(result, *kinds)
    }


SYNCS = """
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        if g.sum() > 1e9:  #! host sync: if, float() or .item() in backward
        #> g = torch.where(g.sum() > 1e9, g / 2, g)
            g = g / 2
            #> -
        return g * 2

@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 4)
        self.norm = 0.0
        self.step = torch.tensor(0)

    def forward(self, x):
        h = self.first(x).relu()
        self.norm = h.norm().item()  #! host sync: .item()
        #> self.norm = h.norm()
        if h.sum() > 1e9:  #! host sync: if or bool()
        #> h = torch.where(h.sum() > 1e9, h / 2, h)
            h = h / 2
            #> -
        kept = h[h > 1e9]  #! host sync: x[mask]
        #> kept = torch.where(h > 1e9, h, 0)
        text = f"{h.mean():.3f}"  #! host sync: format or f-string
        #> text = ""
        seen = h.detach().cpu()  #! host sync: .cpu()
        #> seen = h.detach()
        many = h.tolist()  #! host sync: .tolist()
        #> many = h
        ones = h.nonzero()  #! host sync: nonzero
        #> ones = h != 0
        few = h.argmax(1).unique()  #! host sync: unique
        #> few = h.argmax(1).sort()[0]
        hot = F.one_hot(h.argmax(1))  #! host sync: one_hot
        #> hot = F.one_hot(h.argmax(1), 8)
        two = torch.tensor([h.mean(), h.max()])  #! host sync: torch.tensor of tensors
        #> two = torch.stack([h.mean(), h.max()])
        part = h[: h.argmax()]  #! host sync: x[:n] of a tensor n
        #> part = h
        same = torch.equal(h, h + 1)  #! host sync: equal
        #> same = (h == h + 1).all()
        self.step += 1
        h = h.clone()
        h[:, 0] = 0.0
        h[h > 1e9] = 0.0
        return self.last(Twice.apply(h[:, torch.arange(8)]))

@HOOKS.register_module()
class Reads(Hook):
    def before_run(self, runner):
        self.average = copy.deepcopy(runner.model)

    def after_train_iter(self, runner):
        loss = runner.outputs["log_vars"]["loss"]
        self.last = float(loss)  #! host sync: float()
        #> self.last = loss
        self.step = runner.model.step.item() + torch.arange(3)[-1].item()
        if self.every_n_iters(runner, 50):
            print(self.last)
"""


def test_what_waits_for_the_device_is_found_where_it_is(plant, check):
    clip = {"grad_clip": {"max_norm": 1.0, "error_if_nonfinite": True}}
    hooks = [{"type": "Reads"}]
    planted = plant(SYNCS, custom_hooks=hooks, optimizer_config=clip)
    status, found = check(planted)
    at = 1 + yaml.safe_dump(planted.config).splitlines().index(
        "    error_if_nonfinite: true"
    )
    wanted = {*planted.marks, ("host sync", "error_if_nonfinite", at)}
    assert named(found["cuda"], "host sync") == wanted
    syncs = findings(found["cuda"], "host sync")
    assert {each["severity"] for each in syncs} == {"slow"}
    assert {each["per_step"] for each in syncs if "one_hot" not in each["what"]} == {1}
    assert status == 0
    mended = planted.mended(optimizer_config={"grad_clip": {"max_norm": 1.0}})
    assert named(check(mended)[1]["cuda"]) == set()


CLEAN = """
@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 4)
        )
        self.lstm = nn.LSTM(1, 4, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.lengths = torch.arange(16, 8, -1)
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]

    def forward(self, x):
        host = torch.tensor([1, 2, 3])
        count = int(host.sum()) + len(host.tolist()) + host.numpy().sum()
        text = f"{host} {host.max()}"
        pack = nn.utils.rnn.pack_padded_sequence
        words = pack(x[:, :, None], self.lengths[: len(x)], batch_first=True)
        words, lengths = nn.utils.rnn.pad_packed_sequence(self.lstm(words)[0], True)
        mask = torch.ones(16, 16, device=x.device).triu(1).bool()
        seen = self.attention(words, words, words, attn_mask=mask)[0]
        longest = lengths.max().item()
        x = x[torch.randperm(len(x))]
        x = x * torch.ones(16).type_as(x) + x.new_tensor([1.0]) * torch.tensor(2.0)
        x = torch.where(x > 5, x, torch.zeros_like(x)) + torch.zeros(16).to(x)
        x = x.masked_fill(x > 9, float("-inf")).softmax(1).cumsum(1).clamp(min=0.0)
        x = x + F.one_hot(x.argmax(1), 16) + torch.rand(16).to(x.device)
        return self.net(x) + seen.mean()
"""


def test_what_stays_on_the_host_or_goes_to_the_device_in_order_is_no_fault(
    plant, check
):
    found = check(plant(CLEAN))[1]["cuda"]
    kinds = ("host sync", "device mismatch", "numpy on the device")
    assert named(found, *kinds) == set()


MISMATCHES = """
SHIFT = torch.ones(8)
#> SHIFT = 1.0

@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 4)
        self.scale = torch.ones(16)  #! device mismatch: Planted.scale
        #> self.register_buffer("scale", torch.ones(16), persistent=False)
        self.spread = torch.full((8,), 2.0)

    def forward(self, x):
        h = self.first(x * self.scale).relu()
        h = h + SHIFT  #! device mismatch: the global SHIFT
        h = h + torch.arange(8)  #! device mismatch: torch.arange
        #> h = h + torch.arange(8, device=h.device)
        mask = torch.zeros(8)  #! device mismatch: torch.zeros
        #> mask = torch.zeros(8, device=x.device)
        h = torch.cat([h, (mask + 1).expand(len(h), 8)], 1)[:, :8]
        far = h.detach().numpy()  #! numpy on the device: .numpy()
        #> far = h
        back = h.detach().cpu()  #! host sync: .cpu()
        #> back = h.detach()
        h = h + back  #! device mismatch: .cpu()
        h = h * torch.tensor(2.0) + torch.randn(8, device=h.device)
        h = h + self.spread.to(h.device) + torch.zeros(8).to(h)
        return self.last(h)
"""


def test_tensors_that_stay_on_the_host_are_found_where_they_are_made(plant, check):
    planted = plant(MISMATCHES)
    status, found = check(planted)
    assert named(found["cuda"]) == set(planted.marks)
    remedies = {each["remedy"] for each in findings(found["cuda"])}
    wanted = re.findall("#> (.*(?:buffer|zeros).*)", planted.source)
    assert len(wanted) == 2 and remedies >= set(wanted)
    assert status == 11
    assert named(check(planted.mended())[1]["cuda"]) == set()


HARD_WIRED = """
def wait(stream: torch.cuda.Stream | None = None, device: torch.cuda.device = None):
    pass

@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4).cuda()  #! hard-wired cuda: .cuda()
        scale = torch.ones(16, device="cuda:0")  #! hard-wired cuda: ones(device='cuda')
        self.register_buffer("scale", scale)

    def forward(self, x):
        x = x.to("cuda") * self.scale  #! hard-wired cuda: .to('cuda')
        torch.cuda.synchronize()  #! hard-wired cuda: torch.cuda.synchronize
        half = torch.bfloat16
        with torch.autocast("cuda", half):  #! hard-wired cuda: autocast('cuda')
            out = self.net(x)
        scaler = torch.amp.GradScaler("cuda")  #! hard-wired cuda: GradScaler('cuda')
        torch.cuda.nvtx.range_push("end")  #! hard-wired cuda: nvtx.range_push
        ones = torch.cuda.FloatTensor(4)  #! hard-wired cuda: torch.cuda.FloatTensor
        return out.float() + ones.fill_(1)
"""


def test_code_that_names_cuda_runs_on_and_breaks_on_every_other_device(plant, check):
    planted = plant(HARD_WIRED)
    status, found = check(planted, device="cpu cuda")
    assert named(found["cpu"], "hard-wired cuda") == set(planted.marks)
    assert {f["severity"] for f in findings(found["cpu"], "hard-wired cuda")} == {
        "breaks"
    }
    assert named(found["cuda"]) == set()
    assert status == 11


ON_CUDA = """
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.compile(nn.Linear(16, 4), backend="aot_eager")
        self.kept = torch.ones(4).to(DEVICE)
        if torch.cuda.is_available():
            self.moved = torch.ones(4).cuda()

    def forward(self, x):
        out = self.net(x) * self.kept + torch.zeros(4, device=DEVICE)
        return out * self.moved if hasattr(self, "moved") else out
"""


def test_code_that_asks_first_whether_there_is_cuda_is_clean(plant, check):
    status, found = check(plant(ON_CUDA), device="cpu cuda")
    assert (named(found["cpu"]), named(found["cuda"]), status) == (set(), set(), 0)


STACK = """
@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 1024)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.last = nn.Linear(1024, 4)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(1024, 1024), nn.Linear(1024, 1024)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))
"""
WEIGHTS = 4 * (16 * 1024 + 1024 + 12 * (1024**2 + 1024) + 4 * 1024 + 4)


@pytest.mark.slow
def test_a_batch_that_does_not_fit_gets_a_micro_batch_that_does(plant, check):
    data = {**CONFIG["data"], "samples_per_gpu": 65536}
    planted = plant(STACK, data=data)
    status, found = check(planted, "--memory", "2GiB")
    (finding,) = findings(found["cuda"])
    assert finding["kind"] == "out of memory" and finding["severity"] == "breaks"
    text = (planted.folder / "planted.yaml").read_text().splitlines()
    assert "samples_per_gpu: 65536" in text[int(finding["site"].rpartition(":")[2]) - 1]
    memory = found["cuda"]["facts"]["memory in MiB"]
    assert memory["weights"] == pytest.approx(WEIGHTS / 2**20, rel=1e-3)
    assert memory["optimizer state"] == pytest.approx(2 * memory["weights"], rel=1e-3)
    assert memory["samples"] == 65536 and memory["measured"] == "without values"
    # of each block, what up was given, what gelu was, and what down was: 4 KiB each
    assert memory["activations"] > 65536 * 6 * 3 * 4 / 1024
    fix = finding["fix"]
    assert fix["data.samples_per_gpu"] * fix["optimizer_config.cumulative_iters"] == (
        65536
    )
    assert status == 11
    options = [f"{key}={value}" for key, value in fix.items()]
    status, found = check(planted, "--memory", "2GiB", "--cfg-options", *options)
    assert status == 0 and not findings(found["cuda"])
    peak = found["cuda"]["facts"]["memory in MiB"]["peak"]
    assert 512 < peak < 2048 - 512


DEEP = """
@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(8))
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        wide = self.last(x).repeat(1, 2**19)
        for block in self.blocks:
            wide = block(wide)
        return wide[:, :4]

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Linear(1, 1, bias=False)

    def forward(self, x):
        for _ in range(8):
            x = torch.sin(x)
        return x * self.scale.weight
"""


@pytest.mark.slow
def test_a_sample_that_does_not_fit_gets_recomputation(plant, check):
    data = {**CONFIG["data"], "samples_per_gpu": 1}
    planted = plant(DEEP, data=data)
    words = ("--steps", "1", "--memory", "850MiB")
    found = check(planted, *words)[1]["cuda"]
    (finding,) = findings(found)
    # of each block, eight times what sin was given and once what the scale was: 8 MiB
    activations = found["facts"]["memory in MiB"]["activations"]
    assert 8 * 9 * 8 <= activations < 8 * 9 * 8 * 1.1
    assert finding["fix"] == {"gradient_checkpointing": True}
    options = ["--cfg-options", "gradient_checkpointing=true"]
    assert named(check(planted, *words, *options)[1]["cuda"]) == set()


COMPILED = """
@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 4)

    def forward(self, x):
        out = self.net(x)
        print("forward")  #! graph break: print
        #> -
        return out * 2
"""


def test_what_would_break_the_compilers_graph_is_found(plant, check):
    compiled = {"device": {"type": "cuda", "compile": True}}
    planted = plant(COMPILED, **compiled)
    found = check(planted)[1]["cuda"]
    ((kind, what, line),) = planted.marks
    breaks = findings(found, kind)
    assert [each["what"].startswith(f"`{what}`") for each in breaks] == [True]
    assert breaks[0]["site"].endswith(f":{line}") and breaks[0]["severity"] == "slow"
    assert named(check(planted.mended())[1]["cuda"]) == set()


def test_an_option_that_cuda_does_not_have_is_found(plant, check):
    planted = plant(CLEAN, cuda={"benchmark": True}).mended()
    (row,) = findings(check(planted, "--steps", "1")[1]["cuda"], "config")
    assert row["severity"] == "breaks" and row["what"] == "cuda.benchmark"


CHANCES = """
@MODELS.register_module()
class Planted(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(16, 1)

    def forward(self, x):
        return self.net(x)

@MODELS.register_module()
class Loss(nn.Module):
    def forward(self, x, y):
        p, y = x.sigmoid(), y[:, None].clamp(max=1).float()
        return F.binary_cross_entropy(p, y)  #! autocast: binary_cross_entropy
        #> return F.binary_cross_entropy_with_logits(x, y)
"""


def test_what_only_cudas_autocast_refuses_is_found_on_the_cpu(plant, check):
    half = {"optimizer_config": {"precision": "bf16"}, "evaluation": None}
    planted = plant(CHANCES, **half, loss={"type": "planted.Loss"})
    assert named(check(planted)[1]["cuda"]) == set(planted.marks)
    assert named(check(planted.mended())[1]["cuda"]) == set()
