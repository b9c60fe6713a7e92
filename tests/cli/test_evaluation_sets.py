"""Several evaluation sets by name: `data.val: {a: ..., b: ...}`."""

import json
from pathlib import Path

import pytest

from devrun.cli.main import main
from tests.cli.conftest import logged, one_error, record


def data(**changes):
    near = {"type": "SyntheticClassification", "num_samples": 16, "offset": 32}
    far = {"type": "SyntheticClassification", "num_samples": 11, "offset": 64}
    return {
        "samples_per_gpu": 8,
        "train": {"type": "SyntheticClassification", "num_samples": 32},
        "val": {"near": near, "accents": far},
        **changes,
    }


BEST = {"metric": "accuracy", "save_best": "accents/loss"}


@pytest.mark.parametrize("device", [["cpu"], ["ipu", "--emulate"]])
def test_each_set_has_its_results(config, train, capsys, device):
    path = config(data=data(), evaluation=BEST)
    words = (path, "--work-dir", "out", "--seed", "1", "--device", *device)
    status, out, err = train(*words)
    assert status == 0, err
    last = logged("out", "val")[-1]
    for name, size in (("near", 16), ("accents", 11)):
        alone = config("alone.yaml", data=data(val=data()["val"][name]))
        newest = "out/checkpoints/latest.json"
        where = ("--split", "val", "--out", "found.json", "--device", *device)
        assert main(["test", alone, newest, *where]) == 0
        found = json.loads(Path("found.json").read_text())["results"]
        for result in ("loss", "accuracy"):
            assert last[f"{name}/{result}"] == pytest.approx(found[result], rel=1e-4)
        assert last[f"{name}/accuracy"] * size == pytest.approx(
            round(last[f"{name}/accuracy"] * size), abs=1e-2
        )
    assert "near/accuracy" in out
    assert "best: accents/loss" in out  # less is better, though the name has `acc`
    best = record("out")["best"]
    assert best["score"] == pytest.approx(
        min(r["accents/loss"] for r in logged("out", "val"))
    )
    assert "best_accents_loss_epoch_" in best["checkpoint"]


def test_hooks_go_by_the_names_and_a_resumed_run_too(config, train):
    hooks = [
        {"type": "EMAHook", "momentum": 0.2, "warm_up": 1},
        {"type": "EarlyStoppingHook", "monitor": "near/loss", "patience": 9},
    ]
    schedule = {
        "policy": "ReduceLROnPlateau",
        "monitor": "accents/loss",
        "mode": "max",  # a falling loss is no improvement: the rate must fall
        "patience": 0,
        "factor": 0.5,
    }
    changes = {
        "data": data(),
        "evaluation": BEST,
        "custom_hooks": hooks,
        "lr_config": schedule,
    }
    four = {"type": "EpochBasedRunner", "max_epochs": 4}
    path = config(runner=four, **changes)
    assert train(path, "--work-dir", "whole", "--seed", "1")[0] == 0
    short = config("short.yaml", **changes)
    assert train(short, "--work-dir", "parts", "--seed", "1")[0] == 0
    words = ("--work-dir", "parts", "--resume-from", "auto", "--seed", "1")
    status, _, err = train(path, *words)
    assert status == 0, err
    ends = [record(work_dir) for work_dir in ("whole", "parts")]
    assert ends[0]["metrics"] == ends[1]["metrics"]
    assert ends[0]["best"]["score"] == ends[1]["best"]["score"]
    rates = [line["lr"] for line in logged("whole")]
    assert rates[-1] < rates[0]


def test_devrun_test_evaluates_each(config, train, capsys):
    path = config(data=data(test=data()["val"]), evaluation=BEST)
    assert train(path, "--work-dir", "out", "--seed", "1")[0] == 0
    capsys.readouterr()
    words = ["test", path, "out", "--out", "found.json"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("test: accents/loss ")
    found = json.loads(Path("found.json").read_text())["results"]
    metrics = record("out")["metrics"]
    assert found == metrics
    assert set(found) == {
        f"{s}/{r}" for s in data()["val"] for r in ("loss", "accuracy")
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"evaluation": {"save_best": "accuracy"}},
            "one of the evaluation sets accents, near",
        ),
        (
            {"evaluation": {"save_best": "nera/loss"}},
            "did you mean 'near/loss'?",
        ),
        (
            {"evaluation": {"save_best": "near/top1", "metric": "accuracy"}},
            "there are: near/accuracy, near/loss",
        ),
        ({"workflow": [["train", 1], ["val", 1]]}, "data.val has accents, near"),
        ({"data": data(val={"a/b": data()["val"]["near"]})}, "'a/b'"),
        ({"data": data(val={"a": {"typ": "x"}})}, "type"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(config, train, changes, words):
    changes = {"data": data(), "evaluation": {"metric": "accuracy"}, **changes}
    assert words in one_error(train(config(**changes)), 2)


NEAR = data()["val"]["near"]
BAD = {
    "missing folder": (
        {"type": "ImageFolder", "data_prefix": "/nonexistent/x"},
        "data.val.bad: ImageFolder: no such image folder: /nonexistent/x",
    ),
    "unknown type": (
        {**NEAR, "type": "SyntheticClassificatoin"},
        "data.val.bad.type: 'SyntheticClassificatoin' is not in the dataset registry",
    ),
    "wrong key": (
        {**NEAR, "num_sample": 3},
        "data.val.bad.num_sample: SyntheticClassification got an unexpected argument",
    ),
    "no type": ({"num_samples": 3}, "data.val.bad: no 'type' for the dataset"),
    "no section": (3, "data.val.bad: an evaluation set is a section with a 'type'"),
    "within": (
        {"type": "RepeatDataset", "times": 2, "dataset": {**NEAR, "sed": 1}},
        "data.val.bad.dataset.sed: ",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_set_is_named_by_its_path(config, train, kind):
    section, words = BAD[kind]
    changed = data(val={"good": NEAR, "bad": section})
    error = one_error(train(config(data=changed)), 2, 4)
    assert words in error
    assert "small.yaml:" in error
