"""Models, tokenizers, processors and data sets of Hugging Face, from files alone."""

import contextlib
import json
import os
import runpy
import shutil
from pathlib import Path

import pytest

from devrun.cli.main import main
from devrun.data.build import build_dataset, build_loaders
from devrun.data.datasets.huggingface import PROCESSORS
from devrun.errors import ConfigError, DataError
from devrun.models.build import build_model
from tests.support.packages import let_torchvision_load
from tests.support.strict import zip_strict

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "hugging_face"
LOADER = "transformers.AutoTokenizer.from_pretrained"
FOLDER = "pretrained_model_name_or_path"
TOKENIZER = {"type": LOADER, FOLDER: "data/tokenizer"}
TEXTS = {"type": "HuggingFaceDataset", "path": "data/docstrings/train.jsonl"}
DIGITS = {"type": "HuggingFaceDataset", "path": "data/digits", "split": "val"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the program beside the examples makes."""
    for package in ("transformers", "datasets", "sklearn", "PIL"):
        pytest.importorskip(package)
    let_torchvision_load()
    place = tmp_path_factory.mktemp("hugging_face")
    program = runpy.run_path(str(EXAMPLES / "make_data.py"))
    with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
        program["make_texts"](place / "data")
        program["make_images"](place / "data")
    return place


@pytest.fixture(autouse=True)
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", place / "cache")


def train(config, folder, *changes, device="cpu"):
    emulated = [] if device == "cpu" else ["--emulate"]
    words = [str(config), "--device", device, *emulated, "--work-dir", str(folder)]
    options = ["--cfg-options", *changes] if changes else []
    assert main(["train", *words, "--no-progress", *options]) == 0
    return records(folder)


def records(folder):
    (log,) = folder.glob("*.log.json")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [row for row in rows if "mode" in row]


@pytest.mark.parametrize(
    ("name", "result", "low", "high"),
    [
        ("text_classification", "accuracy", 0.85, 1.0),
        ("causal_lm", "perplexity", 1.0, 300.0),
        ("image_classification", "accuracy", 0.8, 1.0),
    ],
)
def test_an_example_learns(tmp_path, name, result, low, high):
    rows = train(EXAMPLES / f"{name}.yaml", tmp_path / "run")
    assert low < rows[-1][result] <= high


@pytest.mark.parametrize("device", ["hpu", "ipu"])
def test_the_emulators_give_the_losses_of_the_cpu(tmp_path, device, on_gaudi):
    short = "runner={type: IterBasedRunner, max_iters: 3, _delete_: true}"
    changes = [short, "evaluation.interval=3"]
    changes += ["log_config={interval: 1, hooks: [{type: TextLoggerHook}]}"]
    changes += ["model.config.hidden_dropout_prob=0.0", "data.drop_last=true"]
    changes += ["model.config.attention_probs_dropout_prob=0.0"]
    changes += ["data.val_dataloader={samples_per_gpu: 32}"]
    config = EXAMPLES / "text_classification.yaml"
    if device == "hpu":
        on_gaudi(config, "--cfg-options", *changes, "--work-dir", tmp_path / device)
        mine = records(tmp_path / device)
    else:
        mine = train(config, tmp_path / device, *changes, device=device)
    theirs = train(config, tmp_path / "cpu", *changes)
    assert [r["mode"] for r in mine] == ["train"] * 3 + ["val"]
    for row, other in zip_strict(mine, theirs):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_rows_go_through_a_tokenizer_and_are_padded_together():
    columns = {"label": "labels"}
    cfg = {**TEXTS, "columns": columns, "processor": TOKENIZER}
    data = build_dataset(cfg)
    text = json.loads(Path(TEXTS["path"]).read_text().splitlines()[0])["text"]
    assert set(data[0]) >= {"input_ids", "attention_mask", "labels"}
    assert "text" not in data[0]
    assert text.startswith(data.processor.decode(data[0]["input_ids"][:1]))
    assert list(data.targets[:3]) == [data[i]["labels"] for i in range(3)]
    collate = {"type": "transformers.DataCollatorWithPadding", "tokenizer": TOKENIZER}
    section = {"train": cfg, "samples_per_gpu": 6, "collate_fn": collate}
    batch = next(iter(build_loaders(section, ["train"])["train"]))
    longest = int(batch["attention_mask"].sum(1).max())
    assert batch["input_ids"].shape == (6, longest)


def test_images_go_through_an_image_processor(tmp_path):
    image = "transformers.AutoImageProcessor.from_pretrained"
    loaded = {"type": image, FOLDER: "data/image_processor"}
    cfg = {**DIGITS, "inputs": "image", "arguments": {"return_tensors": "pt"}}
    sample = build_dataset({**cfg, "processor": loaded})[0]
    assert sample["pixel_values"].shape == (3, 24, 24)
    assert -1 <= sample["pixel_values"].min() < sample["pixel_values"].max() <= 1
    made = {
        "type": "transformers.ViTImageProcessorPil",
        "size": {"height": 4, "width": 6},
    }
    assert build_dataset({**cfg, "processor": made})[0]["pixel_values"].shape[1:] == (
        4,
        6,
    )
    assert build_dataset(DIGITS)[0]["image"].mode == "RGB"


@pytest.mark.parametrize("suffix", ["csv", "parquet", "txt"])
def test_files_of_other_kinds_are_read(tmp_path, suffix):
    from datasets import Dataset

    rows = Dataset.from_dict({"text": ["one two", "three"], "label": [1, 0]})
    file = tmp_path / f"rows.{suffix}"
    if suffix == "txt":
        file.write_text("one two\nthree\n")
    else:
        getattr(rows, f"to_{suffix}")(str(file))
    data = build_dataset({"type": "HuggingFaceDataset", "path": str(tmp_path / "r*")})
    assert [row["text"] for row in data] == ["one two", "three"]


def saved(folder, **facts):
    """A copy of the tokenizer whose config says more."""
    shutil.copytree("data/tokenizer", folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **facts}))
    return {"type": LOADER, FOLDER: str(folder)}


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"path": "data/none.jsonl"}, DataError, "no such file or folder"),
        ({"path": "https://example.org/a.jsonl"}, DataError, "nothing is downloaded"),
        ({"path": "data/tokenizer"}, DataError, "cannot read data/tokenizer"),
        ({"path": "data/docstrings/*"}, ConfigError, "files of one kind, of .csv"),
        ({"path": "data/digits"}, ConfigError, "split of data/digits must be given"),
        ({"columns": {"lable": "labels"}}, ConfigError, "did you mean 'label'"),
        ({"inputs": "txet"}, ConfigError, "did you mean 'text'"),
        ({"processor": {**TOKENIZER, FOLDER: "gpt2"}}, DataError, "--allow-download"),
        (
            {"processor": {**TOKENIZER, "trust_remote_code": True}},
            ConfigError,
            "is not given 'trust_remote_code'",
        ),
        (
            {"processor": {"type": "transformers.pipeline", "task": "x"}},
            ConfigError,
            "cannot be the type of a processor",
        ),
        (
            {"processor": {"type": "transformers.BertModel", "config": {}}},
            ConfigError,
            "cannot be the type of a processor",
        ),
        (
            {"processor": {"type": "transformers.BertTokenizer"}},
            ConfigError,
            "cannot be the type of a processor",
        ),
        (
            {"processor": {"type": "subprocess.Popen", "args": "id"}},
            ConfigError,
            "standard library",
        ),
    ],
)
def test_what_cannot_be_read_or_named_is_one_line(change, kind, message):
    cfg = {**TEXTS, "processor": TOKENIZER, **change}
    with pytest.raises(kind, match=message) as error:
        build_dataset(cfg)
    assert "\n" not in str(error.value)


def test_a_folder_may_not_name_another_class_than_one_of_its_kind(tmp_path):
    cfg = saved(tmp_path / "other", tokenizer_class="RagTokenizer")
    with pytest.raises(TypeError, match="made no processor: RagTokenizer"):
        PROCESSORS.build(cfg)


def test_code_that_a_folder_names_is_not_run(tmp_path):
    (tmp_path / "evil").mkdir()
    cfg = saved(tmp_path / "own", auto_map={"AutoTokenizer": ["mine.Mine", None]})
    (tmp_path / "own" / "mine.py").write_text("open('ran', 'w')\nclass Mine: ...\n")
    PROCESSORS.build(cfg)
    assert not Path("ran").exists()


def test_an_image_that_a_row_names_is_not_fetched(tmp_path):
    from datasets import Dataset, Features, Image
    from pyarrow import parquet

    row = {"image": [{"bytes": None, "path": "http://127.0.0.1:9/x.png"}]}
    rows = Dataset.from_dict(row, features=Features({"image": Image(decode=False)}))
    table = rows.cast_column("image", Image()).data.table
    parquet.write_table(table, tmp_path / "a.parquet")
    data = build_dataset(
        {"type": "HuggingFaceDataset", "path": str(tmp_path / "a.parquet")}
    )
    with pytest.raises(DataError, match="row 0: cannot read the image"):
        data[0]


def claiming(rows, was, kind, folder):
    """`rows` of a column `x` of the kind `was`, saved as if they were of another."""
    from datasets import Dataset, Features

    Dataset.from_dict({"x": rows}, features=Features(x=was)).save_to_disk(folder)
    info = folder / "dataset_info.json"
    facts = {**json.loads(info.read_text()), "features": Features(x=kind).to_dict()}
    info.write_text(json.dumps(facts))
    return {"type": "HuggingFaceDataset", "path": str(folder)}


@pytest.mark.parametrize("inside", ["a list", "a dict"])
def test_a_picture_inside_of_something_is_not_fetched_either(tmp_path, inside):
    from datasets import Image, List, Value

    row = {"bytes": None, "path": "http://127.0.0.1:9/x.png"}
    was = {"bytes": Value("binary"), "path": Value("string")}
    value, kinds = [row], (List(was), List(Image()))
    if inside == "a dict":
        value, kinds = {"y": row}, ({"y": was}, {"y": Image()})
    cfg = claiming([value], *kinds, tmp_path / "rows")
    with pytest.raises(ConfigError, match="column 'x' has a Image, which is not read"):
        build_dataset(cfg)


def test_an_image_processor_does_not_fetch_what_a_text_names(tmp_path):
    from datasets import Value

    rows, text = ["http://127.0.0.1:9/x.png"], Value("string")
    cfg = claiming(rows, text, text, tmp_path / "rows")
    cfg["processor"] = {"type": "transformers.ViTImageProcessorPil"}
    with pytest.raises(ConfigError, match="names 'x', a column of the kind Value"):
        build_dataset({**cfg, "inputs": "x"})


CONFIGS = ROOT / "configs" / "huggingface"


def short(*changes):
    return ["data.workers_per_gpu=0", "data.samples_per_gpu=4", *changes]


@pytest.mark.parametrize(
    ("name", "model", "changes"),
    [
        (
            "bert-base_text-classification",
            "text_classification",
            [
                "data.train.path=data/docstrings/train.jsonl",
                "data.val.path=data/docstrings/val.jsonl",
                "data.train.inputs=text",
                "data.val.inputs=text",
            ],
        ),
        (
            "gpt2_causal-lm",
            "causal_lm",
            [
                "data.train.path=data/docstrings/train.txt",
                "data.val.path=data/docstrings/val.txt",
                "data.train.arguments.max_length=24",
                "data.val.arguments.max_length=24",
            ],
        ),
        (
            "vit-base_image-classification",
            "image_classification",
            [
                "data.train.path=data/digits",
                "data.val.path=data/digits",
                "data.train.split=train",
                "data.val.split=val",
                "data.train.columns={label: labels, _delete_: true}",
                "data.val.columns={label: labels, _delete_: true}",
                "model.num_labels=10",
                "model.ignore_mismatched_sizes=true",
            ],
        ),
    ],
)
def test_a_shipped_config_runs_on_folders_of_its_layout(
    tmp_path, capsys, name, model, changes
):
    from devrun.config import Config

    example = Config.fromfile(EXAMPLES / f"{model}.yaml")
    folder = tmp_path / "weights"
    build_model(example.model).save_pretrained(folder)
    if model == "image_classification":
        shutil.copytree("data/image_processor", folder, dirs_exist_ok=True)
        parts = ["data.train.processor", "data.val.processor"]
    else:
        shutil.copytree("data/tokenizer", folder, dirs_exist_ok=True)
        parts = ["data.train.processor", "data.val.processor"]
        parts += ["data.collate_fn.tokenizer"]
    folders = [f"{part}.{FOLDER}={folder}" for part in ("model", *parts)]
    if model == "causal_lm":
        folders += [f"{part}.pad_token='[PAD]'" for part in parts]
    words = ["train", str(CONFIGS / f"{name}.yaml"), "--dry-run", "--device", "cpu"]
    options = short(*changes, *folders)
    assert main([*words, "--cfg-options", *options]) == 0
    assert "nothing was written" in capsys.readouterr().out
