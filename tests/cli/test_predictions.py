import csv
import json
import os
import sys
from pathlib import Path

import numpy
import pytest
import torch

from devrun.cli.main import main
from devrun.cli.predictions import write_predictions
from devrun.data import SyntheticClassification
from devrun.models import MLP
from tests.support import zygote

VAL = {"type": "SyntheticClassification", "num_samples": 13, "offset": 32}
WORDS = ("--split", "val", "--no-progress")


@pytest.fixture
def trained(config, train):
    """A config of a data set that divides by nothing, and its trained run."""

    def make(**changes):
        data = {
            "samples_per_gpu": 4,
            "train": {"type": "SyntheticClassification", "num_samples": 32},
            "val": VAL,
            "val_dataloader": {"shuffle": True, "drop_last": True},
            **changes.pop("data", {}),
        }
        path = config(data=data, **changes)
        status, _, err = train(path, "--work-dir", "out", "--seed", "1")
        assert status == 0, err
        return path

    return make


def expected():
    """Scores and labels of each sample, by the saved weights themselves."""
    from devrun.checkpoint import find_latest, read_checkpoint

    model = MLP(in_features=16, hidden=[8], num_classes=4)
    newest = find_latest(Path("out/checkpoints"))
    model.load_state_dict(read_checkpoint(newest)["model"])
    samples = SyntheticClassification(num_samples=13, offset=32)
    x = torch.stack([samples[i][0] for i in range(13)])
    return model(x).detach(), [int(samples[i][1]) for i in range(13)]


def read_back(path):
    """(index, prediction, label, scores) of each row, from any of the formats."""
    if path.endswith(".csv"):
        rows = list(csv.DictReader(Path(path).read_text().splitlines()))
        return [
            (
                int(r["index"]),
                int(r["prediction"]),
                r.get("label") and int(r["label"]),
                [float(r[f"score_{i}"]) for i in range(4)],
            )
            for r in rows
        ]
    rows = map(json.loads, Path(path).read_text().splitlines())
    return [(r["index"], r["prediction"], r.get("label"), r["scores"]) for r in rows]


def check(rows):
    scores, labels = expected()
    assert [r[0] for r in rows] == list(range(13))
    assert [r[1] for r in rows] == scores.argmax(1).tolist()
    assert [r[2] for r in rows] == labels
    torch.testing.assert_close(torch.tensor([r[3] for r in rows]), scores)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_each_sample_once_and_in_order(trained, capsys, suffix):
    path, out = trained(), f"found{suffix}"
    assert main(["predict", path, "out", *WORDS, "--out", out]) == 0
    assert f"written: {out} (13 rows)" in capsys.readouterr().out
    check(read_back(out))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_padded_batch_and_replicas_add_no_rows(trained, workers):
    path = trained(data={"workers_per_gpu": workers})
    words = ["--device", "ipu", "--emulate", "--ipu-replicas", "2"]
    assert main(["predict", path, "out", *WORDS, *words, "--out", "ipu.jsonl"]) == 0
    check(read_back("ipu.jsonl"))


def test_several_processes_write_one_file(trained):
    path = trained()
    program = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "devrun"]
    words = ["predict", path, "out", *WORDS, "--launcher", "pytorch", "--device", "cpu"]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
    }
    words += ["--out", "two.csv"]
    done = zygote.run([*program, *words], env, os.getcwd(), timeout=120)
    assert done.returncode == 0, done.stderr
    check(read_back("two.csv"))


def test_a_file_with_a_line_break_in_its_name_is_said_on_one_line(trained, capsys):
    path = trained()
    assert main(["predict", path, "out", *WORDS, "--out", "a\nb.csv"]) == 0
    check(read_back("a\nb.csv"))
    assert r"written: a\nb.csv (13 rows)" in capsys.readouterr().out.splitlines()


class Half(torch.utils.data.Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return torch.full((16,), float(index))


def test_without_labels(trained, monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    path = trained()
    words = [
        "--cfg-options",
        f"data.val={{type: {Path(__file__).stem}.Half, _delete_: true}}",
    ]
    assert main(["predict", path, "out", *WORDS, *words, "--out", "half.jsonl"]) == 0
    rows = [json.loads(line) for line in Path("half.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(7))
    assert "label" not in rows[0]
    assert all(max(r["scores"]) == r["scores"][r["prediction"]] for r in rows)


def test_each_named_set_has_a_file(trained):
    sets = {"a": VAL, "b": {**VAL, "num_samples": 5}}
    path = trained(data={"val": sets}, evaluation={"metric": "accuracy"})
    assert main(["predict", path, "out", *WORDS, "--out", "p.jsonl"]) == 0
    check(read_back("p-a.jsonl"))
    assert len(read_back("p-b.jsonl")) == 5
    assert not Path("p.jsonl").exists()


def test_what_is_no_class_score_is_written_as_it_is(trained):
    model = {"type": "MLP", "in_features": 16, "hidden": [8], "num_classes": 1}
    kind = {"type": f"{Path(__file__).stem}.Regression"}
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        path = trained(
            model=model,
            loss={"type": "MSELoss"},
            evaluation={},
            data={"train": kind, "val": kind},
        )
        assert main(["predict", path, "out", *WORDS, "--out", "p.csv"]) == 0
    finally:
        sys.path.pop(0)
    rows = list(csv.DictReader(Path("p.csv").read_text().splitlines()))
    assert list(rows[0]) == ["index", "prediction", "label"]
    assert json.loads(rows[2]["label"]) == [2.0]


class Regression(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((16,), index / 8), torch.tensor([float(index)])


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--out", "p.txt"], 2, "must end in .csv or .jsonl"),
        (["--out", "no/p.csv"], 8, "cannot be written"),
    ],
)
def test_a_file_that_cannot_be_is_refused_before_the_work(
    config, capsys, words, status, said
):
    assert main(["predict", config(), "absent", *WORDS, *words]) == status
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_rows_of_any_shape_are_written_and_nan_is_kept(tmp_path):
    rows = [
        {"index": 0, "prediction": numpy.array([1, 2])},
        {"index": 1, "prediction": numpy.array([float("nan")])},
    ]
    assert write_predictions("p.jsonl", {"": rows}) == {"p.jsonl": 2}
    last = json.loads(Path("p.jsonl").read_text().splitlines()[-1])
    assert last == {"index": 1, "prediction": ["NaN"]}


OWN_SETS = """
import torch
from torch.utils.data import Dataset
from devrun.registry import DATASETS, MODELS


@DATASETS.register_module()
class TwoNumbers(Dataset):
    def __init__(self):
        self.files = [f"images/{i}.png" for i in range(8)]

    def __len__(self): return 8

    def __getitem__(self, index):
        # the targets of the first sum up to 1, as shares of classes would
        return torch.full((16,), float(index)), torch.tensor([1.0, float(index)])
"""


def test_a_regression_has_no_scores_and_rows_name_their_files(
    config, train, tmp_path, capsys
):
    (tmp_path / "two_numbers.py").write_text(OWN_SETS)
    data = {"samples_per_gpu": 4, "train": {"type": "TwoNumbers"}}
    model = {"type": "MLP", "in_features": 16, "hidden": [], "num_classes": 2}
    changes = {"loss": {"type": "MSELoss"}, "evaluation": None, "model": model}
    path = config(data={**data, "val": data["train"]}, **changes)
    own = ("--import", "two_numbers.py")
    assert train(path, *own, "--work-dir", "out", "--no-validate")[0] == 0
    words = (path, "out", *WORDS, *own, "--out", "found.csv")
    assert main(["predict", *words]) == 0
    with open("found.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["index", "file", "prediction", "label"]
    assert rows[3]["file"] == "images/3.png"


TEXT = {"type": "TextParagraphs", "split": "val", "block_size": 40, "max_bytes": 900}


def test_a_language_model_continues_texts_and_is_judged_by_them(
    config, train, tmp_path, capsys
):
    size = {"block_size": 48, "n_layer": 1, "n_head": 2, "n_embd": 16}
    scored = {"max_new_tokens": 4, "prompt_tokens": 5}
    scored["metrics"] = ["exact_match", "bleu", "rouge"]
    path = config(
        model={"type": "GPT", "vocab_size": 256, **size},
        loss=None,
        data={
            "samples_per_gpu": 4,
            "train": TEXT,
            "val": TEXT,
            "buckets": {"pad": {"input_ids": 0, "labels": -100}, "sizes": "longest"},
        },
        evaluation={"generate": scored, "save_best": "exact_match"},
        runner={"type": "EpochBasedRunner", "max_epochs": 1},
    )
    status, _, err = train(path, "--work-dir", "out")
    assert status == 0, err
    (log,) = Path("out").glob("*.log.json")
    last = json.loads(log.read_text().splitlines()[-1])
    assert {"exact_match", "bleu", "rouge"} <= set(last)
    words = ["predict", str(path), "out", "--split", "val", "--generate"]
    words += ["--max-new-tokens", "4", "--out", "texts.jsonl", "--prompt-tokens", "5"]
    assert main(words) == 0
    rows = [json.loads(line) for line in Path("texts.jsonl").read_text().splitlines()]
    assert all(len(row["prompt"]) <= 5 and len(row["generated"]) == 4 for row in rows)
    text = bytes(rows[0]["generated"]).decode(errors="replace")
    assert rows[0]["text"] == text
    for wrong, said in [
        (words[:5] + words[6:], "add --generate"),
        (words[:6] + words[8:], "--generate needs --max-new-tokens N"),
        ([*words, "--max-new-tokens", "99"], "are more than the model's 48"),
    ]:
        capsys.readouterr()
        assert main(wrong) == 2
        assert said in capsys.readouterr().err.splitlines()[-1]
