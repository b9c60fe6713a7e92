"""LoRA by the config key `peft`."""

import copy
from functools import partial
from pathlib import Path

import pytest
import torch

from devrun.checkpoint import read_checkpoint, write_checkpoint
from devrun.cli.main import main
from devrun.models import VisionTransformer
from tests.cli.conftest import newest, one_error
from tests.support.configs import DATA, VIT
from tests.support.packages import vision

LORA = {
    "type": "LoraConfig",
    "r": 2,
    "target_modules": ["qkv", "fc1"],
    "modules_to_save": ["head"],
}


@pytest.fixture(autouse=True)
def package():
    vision("peft")


@pytest.fixture
def run(weights):
    return partial(weights, model=VIT, data=DATA)


def evaluated(capsys, *words):
    capsys.readouterr()
    assert main(["test", *map(str, words), "--split", "val"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("device", [["cpu"], ["ipu", "--emulate"]])
def test_only_the_adapters_learn_and_an_export_merges_them(run, capsys, device):
    words = ("--device", *device)
    base = run("base")
    load = ("--load-from", newest("base"), *words)
    fast = {"type": "AdamW", "lr": 0.05, "weight_decay": 0.1}
    tuned = run("tuned", *load, peft=LORA, optimizer=fast)
    for name, value in base.items():
        where, _, leaf = name.rpartition(".")
        if where == "head":
            assert not torch.equal(tuned[f"head.modules_to_save.default.{leaf}"], value)
            name = f"head.original_module.{leaf}"
        elif where.endswith(("qkv", "fc1")):
            name = f"{where}.base_layer.{leaf}"
            assert tuned[f"{where}.lora_B.default.weight"].abs().max() > 0
        assert torch.equal(tuned[name], value), name
    log = next(Path("tuned").glob("*.log")).read_text()
    assert "does not fit" not in log.split("missing: ")[0] or "unexpected" not in log
    assert main(["export", "tuned", "--output", "merged.pth"]) == 0
    merged = torch.load("merged.pth", weights_only=True)["state_dict"]
    assert merged.keys() == base.keys()
    model = VisionTransformer(**{k: v for k, v in VIT.items() if k != "type"})
    model.load_state_dict(merged)
    found = evaluated(capsys, "tuned.yaml", "tuned")
    assert evaluated(capsys, "base.yaml", "merged.pth") == found
    assert evaluated(capsys, "base.yaml", newest("base")) != found


FORGED = {
    "rank": (lambda cfg: cfg["peft"].update(r=4), "does not fit VisionTransformer: 8"),
    "targets": (lambda cfg: cfg["peft"].update(target_modules=["qkv"]), "unexpected"),
    "adapter": (lambda cfg: cfg.update(peft=5), "has no section 'peft'"),
    "model": (lambda cfg: cfg.pop("model"), "has no section 'model'"),
    "code": (lambda cfg: cfg["model"].update(type="subprocess.Popen"), "standard"),
    "alpha": (lambda cfg: cfg["peft"].update(lora_alpha="x"), "config in"),
}


def test_a_checkpoint_whose_config_is_forged_is_not_merged(run, capsys):
    run("good", peft=LORA)
    found = read_checkpoint(newest("good"))
    for name, (forge, said) in FORGED.items():
        parts = {part: copy.deepcopy(found[part]) for part in ("model", "trainer")}
        forge(parts["trainer"]["config"])
        write_checkpoint("forged", name, parts, {"step": 1})
        capsys.readouterr()
        assert main(["export", f"forged/{name}", "--output", "out.pth"]) in (2, 3)
        (error,) = capsys.readouterr().err.splitlines()
        assert said in error and f"forged/{name}" in error
    parts["trainer"]["config"] = "text"
    write_checkpoint("forged", "text", parts, {"step": 1})
    assert main(["export", "forged/text", "--output", "out.pth"]) == 3
    assert not Path("out.pth").exists()


def test_a_resumed_run_has_the_same_bits(run, train):
    one = {"type": "EpochBasedRunner", "max_epochs": 1}
    whole = run("whole", peft=LORA)
    run("parts", peft=LORA, runner=one)
    parts = run("parts", "--resume-from", "auto", peft=LORA)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    words = "--work-dir parts --resume-from auto --cfg-options peft.r=4"
    status, _, err = train("parts.yaml", *words.split())
    assert status == 3
    assert "peft.r" in err


def test_norms_of_the_rest_keep_their_statistics(run):
    resnet = {"type": "ResNet", "stage_blocks": [1, 1], "base_channels": 4}
    model = {**resnet, "stem": "cifar", "num_classes": 4}
    lora = {"type": "LoraConfig", "r": 2, "target_modules": ["conv1", "fc"]}
    tuned = run("tuned", model=model, peft=lora)
    assert all(
        torch.equal(value, torch.zeros_like(value))
        for name, value in tuned.items()
        if name.endswith("running_mean")
    )


@pytest.mark.parametrize(
    ("peft", "said"),
    [
        ({"r": 2}, "no 'type' for the adapter"),
        ({**LORA, "target_modules": ["qvk"]}, "peft cannot adapt VisionTransformer"),
        ({"type": "LoraConfg"}, "did you mean 'LoraConfig'"),
        ({**LORA, "rr": 2}, "did you mean 'r'"),
        ({"type": "PromptTuningConfig"}, "peft cannot adapt VisionTransformer"),
        ({"type": "os.system"}, "standard library"),
        ({"type": "peft.get_peft_model"}, "get_peft_model needs 'model'"),
        ([1], "takes a dict, not"),
    ],
)
def test_bad_values_are_one_line(config, train, peft, said):
    line = one_error(train(config(model=VIT, data=DATA, peft=peft)), 2)
    assert said in line, line
    assert "small.yaml:" in line
