"""Made-up data in the layouts of MMSegmentation, and its installed configs with small
images."""

import importlib.util
import math
from pathlib import Path

import numpy as np

from devrun.config import Config
from tests.support.strict import zip_strict

SIDE = 64
SHORT = [
    *("data.samples_per_gpu=2", "data.workers_per_gpu=0", "log_config.interval=1"),
    *("evaluation.interval=1", "data.persistent_workers=False"),
]
"""Options for one update, by one process, and one evaluation."""
_SECTIONS = (
    *("model", "data", "optimizer", "optimizer_config", "lr_config", "runner"),
    *("total_epochs", "evaluation", "checkpoint_config", "log_config", "custom_hooks"),
)
"""What a config has beside its variables."""
_SIZES = ("img_scale", "crop_size", "size", "input_size")


def shipped(package, name):
    """The path of a config of the installed package."""
    folder = Path(importlib.util.find_spec(package).origin).parent
    return str(folder / ".mim" / "configs" / name)


def shrunk(package, name, folder, changes="", side=SIDE):
    """The path of a config with the values of the package's, images of `side` pixels.

    `changes` is Python that is executed with `cfg`, the whole config, as a dict.
    """
    cfg = Config.fromfile(shipped(package, name)).to_dict()
    cfg = _small(cfg, side)
    cfg = {key: cfg[key] for key in _SECTIONS if key in cfg}
    cfg["default_scope"] = package
    exec(changes, {"cfg": cfg})  # noqa: S102
    text = "".join(f"{key} = {value!r}\n" for key, value in cfg.items())
    file = Path(folder) / Path(name).name
    file.write_text(text)
    return str(file)


def one_update(found):
    """The results of the evaluation after one update, of what `run` gave."""
    status, text, records = found
    assert status == 0, text
    (train,) = [r for r in records if r.get("mode") == "train"]
    (val,) = [r for r in records if r.get("mode") == "val"]
    assert math.isfinite(train["loss"])
    return val


def _small(node, side):
    if isinstance(node, dict):
        return {key: _changed(key, value, side) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return type(node)(_small(value, side) for value in node)
    return node


def _changed(key, value, side):
    if key in _SIZES:
        return _sized(value, side)
    if key == "pretrained" or (key == "init_cfg" and _loads(value)):
        return None
    if key == "border" and isinstance(value, tuple):
        return (-side // 2, -side // 2)
    return _small(value, side)


def _loads(value):
    return isinstance(value, dict) and value.get("type") == "Pretrained"


def _sized(value, side):
    if isinstance(value, list):
        return [(side, side)]
    return (side, side) if isinstance(value, tuple) else value


def make_segmentation(folder, count=2):
    """ADE20K's and CHASE_DB1's folders with `count` images for each purpose."""
    import cv2

    draw = np.random.default_rng(0)
    for root, ending, classes in (
        ("data/ade/ADEChallengeData2016", (".jpg", ".png"), 4),
        ("data/CHASE_DB1", (".png", "_1stHO.png"), 2),
    ):
        for part in ("training", "validation"):
            for kind, end in zip_strict(("images", "annotations"), ending):
                where = Path(folder, root, kind, part)
                where.mkdir(parents=True)
                shape = (SIDE, SIDE, 3) if kind == "images" else (SIDE, SIDE)
                high = 256 if kind == "images" else classes
                for n in range(count):
                    image = draw.integers(0, high, shape, dtype=np.uint8)
                    cv2.imwrite(str(where / f"{n}{end}"), image)
