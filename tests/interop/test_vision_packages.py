"""timm and torchvision: the examples learn, and the shipped configs run as they are."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from devrun.cli.main import main
from devrun.config import Config
from devrun.models.build import build_model
from tests.support.packages import let_torchvision_load

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="module")
def packages():
    for package in ("PIL", "sklearn"):
        pytest.importorskip(package)
    let_torchvision_load()
    pytest.importorskip("torchvision")


@pytest.fixture
def timm():
    return pytest.importorskip("timm")


@pytest.mark.filterwarnings("ignore")  # of their own old calls
@pytest.mark.parametrize(("name", "least"), [("timm", 0.9), ("torchvision", 0.6)])
def test_an_example_learns_the_digits(tmp_path, name, least):
    pytest.importorskip(name)
    config = str(ROOT / "examples" / f"{name}_digits.yaml")
    words = ["--device", "cpu", "--work-dir", str(tmp_path), "--no-progress"]
    assert main(["train", config, *words]) == 0
    assert json.loads((tmp_path / "run.json").read_text())["best"]["score"] > least


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """A few images below data/imagenet, in the layout of the configs."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("n01440764", "n01443537"):
            folder = tmp_path / "data" / "imagenet" / split / name
            folder.mkdir(parents=True)
            for number in range(4):
                pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
                image.fromarray(pixels).save(folder / f"{number}.png")
    monkeypatch.chdir(tmp_path)


def test_timms_mixup_trains_with_its_loss_and_evaluates_with_another(timm, tmp_path):
    config = str(ROOT / "examples" / "timm_digits.yaml")
    mixup = "{type: timm.data.Mixup, mixup_alpha: 0.8, num_classes: 10}"
    options = [
        f"data.batch_transform={mixup}",
        "data.train_dataloader.drop_last=true",
        "loss={_delete_: true, type: timm.loss.SoftTargetCrossEntropy}",
        "val_loss={type: CrossEntropyLoss}",
    ]
    words = ["--device", "cpu", "--work-dir", str(tmp_path), "--no-progress"]
    words += ["--cfg-options", *options]
    assert main(["train", config, *words]) == 0
    assert json.loads((tmp_path / "run.json").read_text())["best"]["score"] > 0.8


@pytest.mark.filterwarnings("ignore")  # of their own old calls
@pytest.mark.parametrize(
    "name",
    ["timm/resnet50_imagefolder_a3.yaml", "torchvision/resnet50_imagefolder_v2.yaml"],
)
def test_a_shipped_config_runs_on_folders_of_images(timm, pictures, capsys, name):
    words = ["train", str(ROOT / "configs" / name), "--dry-run", "--device", "cpu"]
    small = ["data.samples_per_gpu=4", "data.workers_per_gpu=0"]
    small += ["optimizer_config.cumulative_iters=1"]
    assert main([*words, "--cfg-options", *small]) == 0
    assert "nothing was written" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of their own old calls
@pytest.mark.parametrize("device", ["cpu", "hpu", "ipu"])
@pytest.mark.parametrize("name", ["resnext101", "efficientnet-b4"])
def test_the_models_of_the_articles_train_on_every_device(
    pictures, capsys, on_gaudi, name, device
):
    config = ROOT / "configs" / "torchvision" / f"{name}_imagefolder.yaml"
    small = ["data.samples_per_gpu=4", "data.workers_per_gpu=0", "performance=null"]
    small += ["optimizer_config.cumulative_iters=1", "data.train.transform.0.size=32"]
    small += ["data.val.transform.0.size=36", "data.val.transform.1.size=32"]
    small += ["data.batch_transform=null", "data.val_dataloader={samples_per_gpu: 4}"]
    if device == "hpu":
        on_gaudi(config, "--dry-run", "--cfg-options", *small)
        return
    emulated = [] if device == "cpu" else ["--emulate"]
    words = ["train", str(config), "--dry-run", "--device", device, *emulated]
    assert main([*words, "--cfg-options", *small]) == 0
    assert "nothing was written" in capsys.readouterr().out


@pytest.mark.parametrize("device", [["cpu"], ["ipu", "--emulate"]])
def test_the_recipe_of_fine_tuning_runs_on_the_digits(tmp_path, capsys, device):
    config = ROOT / "configs" / "torchvision" / "vit-tiny_ft_digits.yaml"
    given = build_model(Config.fromfile(config).model).state_dict()
    torch.save(given, tmp_path / "vit.pth")
    words = ["--no-progress", "--device", *device, "--work-dir", str(tmp_path / "out")]
    words += ["--load-from", str(tmp_path / "vit.pth")]
    options = ["runner.max_epochs=1", "checkpoint_config.interval=1"]
    assert main(["train", str(config), *words, "--cfg-options", *options]) == 0
    said = capsys.readouterr().err
    assert f"loaded all {len(given)}" in said
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["best"]["score"] > 0.1
