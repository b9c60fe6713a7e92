#!/usr/bin/env python3
"""Losses of devrun beside those of MMCV 1.7.2's own runner, update by update.

Both train the same config of MMClassification from the same seed on the same batches,
which are devrun's. devrun seeds the streams once more when the model is there, so
MMCV's runner does here too. Written is one JSON line a config: the largest difference,
relative to the loss, and the losses of both. A second start goes on with these.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import sys
import tempfile
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from openmmlab import find_configs, provide_operators
from openmmlab_changes import downloads
from openmmlab_data import make_data, take_made_up_files

UPDATES = 20
SIZE = 64
"""Height and width of the images, where the config crops them to a size."""
SEED = 3
CONFIGS = (
    "lenet/lenet5_mnist",
    "resnet/resnet18_8xb16_cifar10",
    "resnet/resnet18_8xb32_in1k",
    "resnet/resnet50_8xb16-mixup_cifar10",
    "mobilenet_v2/mobilenet-v2_8xb32_in1k",
    "mobilenet_v3/mobilenet-v3-small_8xb32_in1k",
    "shufflenet_v1/shufflenet-v1-1x_16xb64_in1k",
    "shufflenet_v2/shufflenet-v2-1x_16xb64_in1k",
    "deit/deit-tiny_pt-4xb256_in1k",
    "poolformer/poolformer-s12_32xb128_in1k",
    "van/van-b0_8xb128_in1k",
    "efficientnet/efficientnet-b0_8xb32_in1k",
    "regnet/regnetx-400mf_8xb128_in1k",
    "repvgg/repvgg-A0_4xb64-coslr-120e_in1k",
    "seresnet/seresnet50_8xb32_in1k",
    "resnext/resnext50-32x4d_8xb32_in1k",
    "resnet/resnetv1d50_8xb32_in1k",
    "convnext/convnext-tiny_32xb128_in1k",
    "densenet/densenet121_4xb256_in1k",
    "cspnet/cspresnet50_8xb32_in1k",
    "mlp_mixer/mlp-mixer-base-p16_64xb64_in1k",
    "res2net/res2net50-w14-s8_8xb32_in1k",
    "resnet/resnet50_8xb256-rsb-a3-100e_in1k",
    "hrnet/hrnet-w18_4xb32_in1k",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("configs", nargs="*", default=CONFIGS)
    parser.add_argument("--results", default="build/openmmlab-parity.jsonl")
    args = parser.parse_args()
    results = Path(args.results).absolute()
    results.parent.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    provide_operators()
    take_made_up_files()
    files = find_configs()
    lines = results.read_text("utf-8").splitlines() if results.exists() else ()
    known = {line["config"]: line["difference"] for line in map(json.loads, lines)}
    worst = max(known.values(), default=0.0)
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        os.chdir(folder)
        for name in args.configs:
            if name in known:
                continue
            found = compare(files[f"{name}.py"])
            worst = max(worst, found["difference"])
            line = json.dumps({"config": name, **found})
            with results.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
    return int(worst > 1e-5)


def compare(file: Path, updates: int = UPDATES) -> dict[str, Any]:
    """The losses of both and their largest relative difference."""
    ours, batches, changes = devrun_losses(file, updates)
    theirs = mmcv_losses(file, changes, batches)
    pairs = list(zip(ours, theirs, strict=True))
    difference = max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs)
    return {"difference": difference, "devrun": ours, "mmcv": theirs}


def overrides(cfg: Any, updates: int) -> dict[str, Any]:
    samples = 2
    changes: dict[str, Any] = {
        "data.samples_per_gpu": samples,
        "data.workers_per_gpu": 0,
        "data.train_dataloader": {},
        "runner.max_epochs": 1,
        **dict.fromkeys(downloads(cfg.model, "model")),
    }
    data = cfg.data.train.to_dict()
    for step in data.get("pipeline", ()):
        if step["type"] == "RandomResizedCrop":
            step["size"] = SIZE
            if "img_size" in cfg.model.backbone:
                changes["model.backbone.img_size"] = SIZE
    repeated = {"type": "RepeatDataset", "times": updates, "dataset": data}
    changes["data.train"] = repeated
    changes["sampler"] = None
    changes["custom_hooks"] = None
    return changes


def devrun_losses(
    file: Path, updates: int
) -> tuple[list[float], list[Any], dict[str, Any]]:
    from devrun.config import Config, check_config
    from devrun.hooks import Hook
    from devrun.runners.training import build_training

    cfg: Any = Config.fromfile(file, import_custom_modules=False)
    changes = overrides(cfg, updates)
    cfg.merge_from_dict({f"{k}._delete_": True for k in ("data.train",)})
    cfg.merge_from_dict(changes)
    own = {"checkpoint_config": None, "seed": SEED, "device": "cpu"}
    cfg.merge_from_dict({**own, "log_config": {"hooks": []}})
    check_config(cfg)
    training = build_training(cfg, validate=False, progress=False)
    losses: list[float] = []
    batches: list[Any] = []

    class Record(Hook):
        def before_train_iter(self, runner: Any) -> None:
            batches.append(copy.deepcopy(runner.data_batch))

        def after_train_iter(self, runner: Any) -> None:
            losses.append(float(runner.outputs["loss"]))

    training.runner.register_hook(Record())
    training.run()
    training.runner.close()
    return losses, batches, changes


def mmcv_losses(file: Path, changes: dict[str, Any], batches: list[Any]) -> list[float]:
    mmcv: Any = import_module("mmcv")
    theirs: Any = import_module("mmcv.runner")
    set_random_seed = import_module("mmcls.apis").set_random_seed
    build_classifier = import_module("mmcls.models").build_classifier
    cfg = mmcv.Config.fromfile(str(file))
    for path, value in changes.items():
        if path.startswith("model."):
            cfg.merge_from_dict({path: value})
    set_random_seed(SEED)
    model = build_classifier(cfg.model)
    logging.getLogger("mmcv").setLevel(logging.ERROR)
    model.init_weights()
    quiet = logging.getLogger("parity")
    quiet.setLevel(logging.ERROR)
    optimizer = theirs.build_optimizer(model, cfg.optimizer)
    runner = theirs.EpochBasedRunner(model, None, optimizer, None, quiet, max_epochs=1)
    losses: list[float] = []

    class Record(theirs.Hook):
        def after_train_iter(self, runner: Any) -> None:
            losses.append(float(runner.outputs["loss"]))

    runner.register_training_hooks(cfg.lr_config, cfg.optimizer_config)
    runner.register_hook(Record())
    set_random_seed(SEED)
    runner.run([batches], [("train", 1)])
    return losses


if __name__ == "__main__":
    sys.exit(main())
