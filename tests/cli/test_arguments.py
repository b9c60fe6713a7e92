"""An argument that its constructor refuses: one line with its file, line and key."""

import pytest
import yaml

from devrun.config import Config
from devrun.config.tree import where
from tests.cli.conftest import CONFIG, one_error
from tests.support.configs import changed

BUCKETS = {"pad": {"0": 0}}
HPU = {"type": "hpu", "emulate": True}
IPU = {"type": "ipu", "emulate": True}
WRONG = [
    # data
    (
        "data.train.pipeline.0",
        {"type": "Normalize", "mean": [0.5], "std": [0.0]},
        ".std",
    ),
    ("data.train.pipeline.0", 3, ""),
    ("data.buckets", {**BUCKETS, "num": 0}, ".num"),
    ("data.buckets", {**BUCKETS, "sizes": [4, 0]}, ".sizes"),
    ("data.buckets", {**BUCKETS, "mask": {"x": "m"}}, ".mask"),
    ("data.train_dataloader", {"batch_size": 0}, ".batch_size"),
    ("data.collate_fn", 3, ""),
    ("data.train", {"type": "RepeatDataset", "times": 2, "dataset": 3}, ".dataset"),
    # metrics
    ("evaluation.metric", [3], ".0"),
    ("evaluation.metric", {"type": "accuracy", "top": 3}, ""),
    ("evaluation.metric", ["accuracy", "accuracy"], ".1"),
    ("evaluation.metirc", "accuracy", ""),
    # models
    ("model", {"type": "GPT", "vocab_size": 9, "n_embd": 7, "n_head": 2}, ".n_embd"),
    ("model", {"type": "ResNet", "depth": 18, "stage_blocks": [1, 1]}, ".stage_blocks"),
    # optimizer and schedules
    ("optimizer.paramwise_cfg", 3, ""),
    ("lr_config", {"policy": "StepLR", "schedulers": 3}, ".schedulers"),
    (
        "lr_config",
        {"policy": "SequentialLR", "schedulers": [3], "milestones": []},
        ".schedulers.0",
    ),
    # hooks
    (
        "custom_hooks.0",
        {"type": "ClosureHook", "fn_name": "before_all", "fn": 1},
        ".fn_name",
    ),
    ("custom_hooks.0", 3, ""),
    ("custom_hooks.0", {"type": "ProfilerHook", "activities": ["gpu"]}, ".activities"),
    ("log_config.every", 3, ""),
    # runner
    (
        "runner",
        {"type": "EpochBasedRunner", "max_epochs": 1, "max_iters": 3},
        ".max_iters",
    ),
    ("workflow", [["trane", 1]], ""),
    ("workflow", [["val", 1]], ""),
    # devices
    ("device", {"type": "cpu", "compile": {"backend": "x"}}, ".compile.backend"),
    ("device", {"type": "cpu", "compile": {"modes": 1}}, ".compile.modes"),
    ("device", {"type": "cpu", "channels_last": 3}, ".channels_last"),
    ("device", {"type": "cpu", "emulate": True}, ".emulate"),
    ("device", {"type": "cpu", "sped": 1}, ".sped"),
    ("device", "cpu:x", ""),
    ("device", {"index": 1}, ".index"),
    ("device", {**HPU, "mode": "lasy"}, ".mode"),
    ("device", {**HPU, "compile": True}, ".compile"),
    ("device", {**IPU, "replicas": 0}, ".replicas"),
    ("device", {**IPU, "replicsa": 2}, ".replicsa"),
    ("device", {**IPU, "train_split_edges": 2}, ".train_split_edges"),
    ("device", {**IPU, "train_cfg": {"replicas": 2}}, ".train_cfg.replicas"),
    ("runner.ipu_model_cfg", {"x": 1}, ".x"),
    ("runner.options_cfg", {"index": 1}, ".index"),
]


@pytest.mark.parametrize(
    ("key", "value", "rest"), WRONG, ids=[key + rest for key, _, rest in WRONG]
)
def test_a_refused_argument_is_shown_where_it_stands(key, value, rest, train, tmp_path):
    path = tmp_path / "x.yaml"
    more = {"data.train": {"type": "DigitsDataset"}} if "pipeline" in key else {}
    more |= {"device": IPU} if key.startswith("runner.") else {}
    more |= {key[:-2]: [value]} if key.endswith(".0") else {key: value}
    path.write_text(yaml.safe_dump(changed(CONFIG, more), sort_keys=False))
    node = Config.fromfile(path)
    *above, last = [int(p) if p == "0" else p for p in (key + rest).split(".")]
    for part in above:
        node = node[part]
    place = where(node, 1 if last == "1" else last)
    assert place.origin.line
    error = one_error(train(path, "--dry-run"), 2)
    assert error.startswith(f"devrun: error: {place}")
