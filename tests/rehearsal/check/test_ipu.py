"""What `devrun check` finds of an IPU: faults, each planted in a small training."""

from __future__ import annotations

import json
import os

import pytest
import yaml

from tests.rehearsal.check.conftest import ROOT, SCRIPT
from tests.support import zygote

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

from devrun.hooks import HOOKS, Hook
from devrun.registry import COLLATE_FUNCTIONS, DATASETS, MODELS


@MODELS.register_module()
class Net(nn.Module):
    def __init__(self, plant="", wide=16):
        super().__init__()
        self.plant = plant
        self.a, self.b = nn.Linear(16, wide), nn.Linear(wide, wide)
        self.c, self.d = nn.Linear(wide, wide), nn.Linear(wide, 4)

    def forward(self, x):
        if self.plant == "evaluation" and not self.training and x.sum() > 0:  # eval
            x = x + 0
        return self.d(self.c(self.b(self.a(x).relu()).relu()).relu())


@COLLATE_FUNCTIONS.register_module()
def padded(samples):
    longest = max(len(one["x"]) for one in samples)
    rows = [F.pad(one["x"], (0, longest - len(one["x"]))) for one in samples]
    return {"x": torch.stack(rows), "y": torch.tensor([one["y"] for one in samples])}


@DATASETS.register_module()
class Ragged(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return {"x": torch.arange(4 + index % 3 + index // 4), "y": index % 4}


@MODELS.register_module()
class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(32, 8), nn.Linear(8, 4)

    def train_step(self, data, optimizer):
        loss = F.cross_entropy(self.head(self.table(data["x"]).mean(1)), data["y"])
        return {"loss": loss, "log_vars": {}, "num_samples": len(data["y"])}


@HOOKS.register_module()
class Looks(Hook):
    def after_backward(self, runner):
        pass
"""
DATA = {
    "samples_per_gpu": 4,
    "train": {"type": "SyntheticClassification", "num_samples": 32},
}
VAL = {"type": "SyntheticClassification", "num_samples": 8, "offset": 32}
CONFIG = {
    "model": {"type": "Net"},
    "loss": {"type": "CrossEntropyLoss"},
    "data": DATA,
    "optimizer": {"type": "SGD", "lr": 0.1},
    "runner": {"type": "EpochBasedRunner", "max_epochs": 2},
}


class Found:
    """The findings of one rehearsal, and the lines of what it ran."""

    def __init__(self, notes, folder):
        self.all = notes["findings"]
        self.facts = notes["facts"]
        self.stage = notes["stage"]
        self.reduced = notes["reduced"]
        self._folder = folder

    def brief(self):
        return sorted((f["severity"], f["kind"], f["what"]) for f in self.all)

    def one(self, what):
        (found,) = [f for f in self.all if f["what"] == what]
        return found

    def line(self, text, name="planted.py"):
        """`file:line` of the only line with this text."""
        lines = (self._folder / name).read_text().splitlines()
        (number,) = [n for n, line in enumerate(lines, 1) if text in line]
        return f"{self._folder / name}:{number}"


@pytest.fixture
def rehearse(tmp_path):
    """`rehearse(memory="", changes={}, **sections)` -> Found."""

    def run(memory="", fix=None, **sections):
        (tmp_path / "planted.py").write_text(SOURCE)
        cfg = {**CONFIG, **sections}
        for key, value in (fix or {}).items():
            *parents, last = key.split(".")
            owner = cfg
            for name in parents:
                owner[name] = owner = {**(owner.get(name) or {})}
            owner[last] = value
            if value is None:
                del owner[last]
        file = tmp_path / "c.yaml"
        file.write_text(yaml.safe_dump(cfg, sort_keys=False))
        done = zygote.run(
            [SCRIPT, file, "ipu", "", "planted", memory],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            timeout=120,
        )
        assert "NOTES" in done.stdout, done.stderr
        return Found(json.loads(done.stdout.rpartition("NOTES ")[2]), tmp_path)

    return run


def test_an_evaluation_that_cannot_be_compiled_is_left_to_the_host(rehearse):
    model = {"type": "Net", "plant": "evaluation"}
    data = {**DATA, "val": VAL}
    found = rehearse(model=model, data=data)
    one = found.one("branch on a value")
    assert found.brief() == [("breaks", "cannot be compiled", one["what"])]
    assert one["site"] == found.line("# eval")
    assert one["fix"] == {"ipu.evaluate_on": "host"}
    assert rehearse(model=model, data=data, fix=one["fix"]).brief() == []


EDGES = [{"layer_to_call": "a", "ipu_id": 0}, {"layer_to_call": "d", "ipu_id": 1}]
PIPELINE = {"num_ipus": 2, "train_split_edges": EDGES}
UPDATE = {"cumulative_iters": 3}


def test_an_unbalanced_split_gets_a_better_one(rehearse):
    found = rehearse(
        model={"type": "Net", "wide": 64}, ipu=PIPELINE, optimizer_config=UPDATE
    )
    assert found.brief() == [("slow", "split", "IPU 0")]
    one = found.one("IPU 0")
    assert one["site"] == found.line("  train_split_edges:", "c.yaml")
    assert one["fix"]["ipu.train_split_edges"][1]["layer_to_call"] == "c"
    assert "layer_to_call: c, ipu_id: 1" in one["remedy"]
    assert found.reduced == []  # 3 is what the pipeline needs
    again = rehearse(
        model={"type": "Net", "wide": 64},
        ipu=PIPELINE,
        optimizer_config=UPDATE,
        fix=one["fix"],
    )
    assert again.brief() == []


def test_a_split_that_names_no_layer(rehearse):
    edges = [EDGES[0], {"layer_to_call": "e", "ipu_id": 1}]
    ipu = {"num_ipus": 2, "train_split_edges": edges}
    found = rehearse(ipu=ipu, optimizer_config=UPDATE)
    (one,) = found.all
    assert (one["severity"], one["what"]) == ("breaks", "train_split_edges")
    assert "'e' is no layer" in one["why"]
    assert one["site"] == found.line("  train_split_edges:", "c.yaml")
    again = rehearse(ipu=ipu, optimizer_config=UPDATE, fix=one["fix"])
    assert again.brief() == []


def test_a_model_that_nothing_divides_gets_edges(rehearse):
    ipu = {"num_ipus": 2}
    found = rehearse(ipu=ipu, optimizer_config=UPDATE)
    assert found.brief() == [("breaks", "split", "ipu.num_ipus")]
    one = found.one("ipu.num_ipus")
    assert one["site"] == found.line("  num_ipus:", "c.yaml")
    assert [e["ipu_id"] for e in one["fix"]["ipu.train_split_edges"]] == [0, 1]
    assert rehearse(ipu=ipu, optimizer_config=UPDATE, fix=one["fix"]).brief() == []


def test_the_arithmetic_of_a_batch_is_that_of_the_whole_config(rehearse):
    edges = [{"layer_to_call": name, "ipu_id": i} for i, name in enumerate("abc")]
    ipu = {"num_ipus": 3, "train_split_edges": edges, "replicas": 2}
    sections = {"model": {"type": "Net"}, "ipu": ipu}
    update = {"cumulative_iters": 2}
    found = rehearse(optimizer_config=update, **sections)
    what = "batch arithmetic"
    wanted = ["IPUs", "accumulation", "data set"]
    assert found.brief() == [("breaks", what, name) for name in wanted]
    assert found.stage is None
    assert found.facts["samples of an update"] == (
        "micro-batch 4 x accumulation 2 x replicas 2 = 16 samples"
    )
    assert found.one("accumulation")["fix"] == {"optimizer_config.cumulative_iters": 5}
    line = found.line("cumulative_iters", "c.yaml")
    assert found.one("accumulation")["site"] == line
    assert found.one("data set")["site"] == found.line("  train:", "c.yaml")
    fix = {key: value for f in found.all for key, value in f["fix"].items()}
    assert fix["ipu.autoRoundNumIPUs"] is True
    assert rehearse(optimizer_config=update, fix=fix, **sections).brief() == []


def test_more_ipus_than_a_process_can_have(rehearse):
    found = rehearse(ipu={"replicas": 128}, data={**DATA, "samples_per_gpu": 1})
    assert [f["fix"] for f in found.all if f["what"] == "IPUs"] == [
        {"ipu.replicas": 64}
    ]


@pytest.mark.parametrize(
    ("memory", "wide", "key"),
    [("15000", 16, "data.samples_per_gpu"), ("60000", 64, "ipu.train_split_edges")],
)
def test_a_model_that_has_no_room(rehearse, memory, wide, key):
    sections = {
        "model": {"type": "Net", "wide": wide},
        "data": {**DATA, "samples_per_gpu": 32 if wide == 16 else 4},
    }
    found = rehearse(memory, **sections)
    (one,) = found.all
    assert (one["severity"], one["kind"]) == ("breaks", "memory")
    assert one["site"] == found.line("samples_per_gpu", "c.yaml")
    assert key in one["fix"]
    assert rehearse(memory, fix=one["fix"], **sections).brief() == []
    assert sum(found.facts["memory of each IPU"][0].values()) > int(memory)


REFUSALS = {
    "optimizer": {"optimizer": {"type": "Rprop", "lr": 0.1}},
    "optimizer_config.grad_clip": {
        "optimizer_config": {"grad_clip": {"clip_value": 1.0}}
    },
    "optimizer_config.nonfinite": {"optimizer_config": {"nonfinite": "skip"}},
    "optimizer_config.micro_batch": {"optimizer_config": {"micro_batch": 2}},
    "optimizer_config.detect_anomalous_params": {
        "optimizer_config": {"detect_anomalous_params": True}
    },
    "optimizer_config.precision": {"optimizer_config": {"precision": "bf16"}},
    "custom_hooks.0": {"custom_hooks": [{"type": "Looks"}]},
}


def test_all_that_does_not_carry_over(rehearse):
    sections = {}
    for each in REFUSALS.values():
        for name, section in each.items():
            before = sections.get(name)
            merged = isinstance(before, dict) and name == "optimizer_config"
            sections[name] = {**before, **section} if merged else section
    found = rehearse(**sections)
    assert {f["what"] for f in found.all} == set(REFUSALS)
    assert {f["severity"] for f in found.all} == {"breaks"}
    assert found.stage is None
    for what in REFUSALS:
        last = what.rpartition(".")[2]
        text = {"0": "- type: Looks", "optimizer": "optimizer:"}.get(last, f"  {last}:")
        assert found.one(what)["site"] == found.line(text, "c.yaml")
    fix = {k: v for f in found.all for k, v in f["fix"].items()}
    fix["optimizer"].pop("_delete_")
    del fix["custom_hooks.0"]
    sections["custom_hooks"] = []
    assert rehearse(fix=fix, **sections).brief() == []


def test_batches_of_changing_shape(rehearse):
    train = {"type": "Ragged"}
    sections = {
        "model": {"type": "Bag"},
        "loss": None,
        "data": {
            "samples_per_gpu": 4,
            "shuffle": False,
            "train": train,
            "collate_fn": "padded",
        },
    }
    found = rehearse(**sections)
    (one,) = found.all
    assert (one["severity"], one["kind"]) == ("breaks", "changing shapes")
    assert one["site"] == found.line('    return {"x": torch.stack')
    assert found.stage is None
    assert rehearse(fix=one["fix"], **sections).brief() == []


@pytest.mark.parametrize(
    "sections",
    [
        {"data": {**DATA, "val": VAL}, "optimizer": {"type": "AdamW", "lr": 0.01}},
        {
            "model": {
                "type": "VisionTransformer",
                "img_size": 16,
                "patch_size": 8,
                "embed_dim": 8,
                "depth": 4,
                "num_heads": 2,
                "num_classes": 10,
                "dropout": 0.1,
            },
            "data": {
                "samples_per_gpu": 4,
                "train": {
                    "type": "SyntheticImages",
                    "shape": [3, 16, 16],
                    "num_classes": 10,
                    "num_samples": 64,
                },
                "val": {
                    "type": "SyntheticImages",
                    "shape": [3, 16, 16],
                    "num_classes": 10,
                    "num_samples": 10,
                    "offset": 64,
                },
            },
            "ipu": {
                "num_ipus": 2,
                "replicas": 2,
                "train_split_edges": [
                    {"layer_to_call": "patch_embed", "ipu_id": 0},
                    {"layer_to_call": "blocks.2", "ipu_id": 1},
                ],
            },
            "fp16": {"loss_scale": 256.0, "accum_type": "half"},
            "optimizer_config": {"cumulative_iters": 4},
        },
    ],
)
def test_a_sound_training_gives_nothing(rehearse, sections):
    found = rehearse(**sections)
    assert found.brief() == []
    assert found.stage is None
