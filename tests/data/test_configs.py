"""Every shipped config loads, and reads data in the format that it names."""

import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from devrun.config import Config
from devrun.data import build_loaders, build_pipeline
from devrun.data.facts import check_labels
from devrun.models.build import build_loss, build_model

ROOT = Path(__file__).parents[2] / "configs"
CONFIGS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in ROOT.rglob("*.*")
    if path.suffix in (".py", ".yaml")
    and not {"_base_", "huggingface", "timm", "torchvision"} & {*path.parts}
)
FOREIGN = sorted(
    path.relative_to(ROOT).as_posix()
    for package in ("huggingface", "timm", "torchvision")
    for path in (ROOT / package).iterdir()
)
"""Configs of models of other packages; `tests/interop` runs them."""
EXPECTED = {  # parameters, shape of a sample (None: many)
    "digits/resnet8_digits.yaml": (77_754, (1, 8, 8)),
    "gpt/gpt_tiny_stdlib.yaml": (842_496, (128,)),
    "gpt/gpt_tiny_stdlib_buckets.yaml": (858_880, None),
    "gpt/gpt_tiny_stdlib_varlen.yaml": (858_880, None),
    "gpt/lstm_stdlib.yaml": (7_103_456, (128,)),
    "imagenet/resnet50_imagefolder.yaml": (25_557_032, (3, 224, 224)),
    "mnist/resnet8_mnist.yaml": (77_754, (1, 28, 28)),
    "resnet/resnet18_8xb16_cifar10.py": (11_173_962, (3, 32, 32)),
    "vision_transformer/vit-base-p16_ft-4xb544_in1k-224.yaml": (
        86_567_656,
        (3, 224, 224),
    ),
    "vision_transformer/vit-base-p16_ft-4xb544_in1k-224_ipu.yaml": (
        86_567_656,
        (3, 224, 224),
    ),
}
VARYING = [name for name, (_, shape) in EXPECTED.items() if shape is None]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A few samples under `data/`, in the layouts of the configs."""
    image_module = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    mnist, cifar = tmp_path / "data" / "mnist", tmp_path / "data" / "cifar10"
    for folder in (mnist, cifar):
        folder.mkdir(parents=True)
    for part in ("train", "t10k"):
        pixels = rng.integers(0, 256, (8, 28, 28), dtype=np.uint8)
        (mnist / f"{part}-images-idx3-ubyte").write_bytes(
            struct.pack(">4B3I", 0, 0, 8, 3, 8, 28, 28) + pixels.tobytes()
        )
        (mnist / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">4BI", 0, 0, 8, 1, 8) + bytes(range(8))
        )
    for part in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        records = rng.integers(0, 10, (4, 3073), dtype=np.uint8)
        (cifar / f"{part}.bin").write_bytes(records.tobytes())
    for part in ("train", "val"):
        for name in ("n01440764", "n01443537"):
            folder = tmp_path / "data" / "imagenet" / part / name
            folder.mkdir(parents=True)
            for number in range(20):
                picture = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
                image_module.fromarray(picture).save(folder / f"{number}.jpg")
    return tmp_path


@pytest.mark.parametrize("name", EXPECTED)
def test_no_evaluation_squashes_an_image(name):
    cfg = Config.fromfile(ROOT / name)
    sizes = [
        step["size"]
        for step in cfg.data.val.get("pipeline") or []
        if step["type"].endswith(".Resize")
    ]
    assert all(isinstance(size, int) for size in sizes)


def test_the_vit_is_evaluated_on_the_middle_of_an_image_as_published():
    image_module = pytest.importorskip("PIL.Image")
    pytest.importorskip("torchvision")
    cfg = Config.fromfile(
        ROOT / "vision_transformer/vit-base-p16_ft-4xb544_in1k-224.yaml"
    )
    pixels = np.random.default_rng(0).integers(0, 256, (300, 500, 3), dtype=np.uint8)
    image = image_module.fromarray(pixels)
    small = image.resize((373, 224), image_module.Resampling.BILINEAR)
    left = round((373 - 224) / 2)
    middle = np.asarray(small.crop((left, 0, left + 224, 224)), dtype=np.float32)
    expected = torch.from_numpy((middle - 127.5) / 127.5).permute(2, 0, 1)
    torch.testing.assert_close(build_pipeline(cfg.data.val.pipeline)(image), expected)


@pytest.mark.parametrize("name", [*EXPECTED, *FOREIGN])
def test_the_head_names_the_recipe_and_lists_what_differs(name):
    lines = (ROOT / name).read_text().splitlines()
    head = "\n".join(itertools.takewhile(lambda line: line.startswith("#"), lines))
    recipe = "# Recipe: " in head and "Differences:\n# - " in head
    assert recipe != ("# No published recipe: " in head)


def test_the_list_is_complete():
    assert list(EXPECTED) == CONFIGS


@pytest.mark.parametrize("name", EXPECTED)
def test_the_model_has_the_published_size(name):
    cfg = Config.fromfile(ROOT / name)
    with torch.device("meta"):
        model = build_model(cfg.model)
    assert sum(weight.numel() for weight in model.parameters()) == EXPECTED[name][0]
    if cfg.get("loss") is not None:
        assert isinstance(build_loss(cfg.loss), torch.nn.CrossEntropyLoss)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_data_have_the_shape_that_the_model_takes(name, data):
    cfg = Config.fromfile(ROOT / name)
    if cfg.data.train.type == "ImageFolder":
        pytest.importorskip("torchvision")
    loaders = build_loaders({**cfg.data, "workers_per_gpu": 0, **no_workers(cfg.data)})
    for loader in loaders.values():
        check_labels(loader.dataset, cfg.model.get("num_classes", 256))
        batch = next(iter(loader))
        samples = batch["input_ids"] if isinstance(batch, dict) else batch[0]
        assert tuple(samples.shape[1:]) == EXPECTED[name][1] or name in VARYING
        assert len(samples) <= loader.batch_size


def no_workers(data):
    return {
        key: {**value, "workers_per_gpu": 0}
        for key, value in data.items()
        if key.endswith("_dataloader")
    }


@pytest.mark.parametrize(("name", "replicas"), [(CONFIGS[-2], 1), (CONFIGS[-1], 4)])
def test_the_vision_transformer_updates_on_2176_samples(name, replicas):
    cfg = Config.fromfile(ROOT / name)
    batch = cfg.data.samples_per_gpu * cfg.optimizer_config.cumulative_iters
    assert (cfg.get("ipu") or {"replicas": 1})["replicas"] == replicas
    assert batch * replicas == 17 * 128 == 2176
