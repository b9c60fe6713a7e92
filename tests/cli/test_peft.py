"""LoRA by `peft.get_peft_model`, as any model by its dotted path."""

from functools import partial

import pytest
import torch

from tests.cli.conftest import newest, one_error
from tests.support.configs import DATA, VIT
from tests.support.packages import vision

LORA = {
    "type": "peft.LoraConfig",
    "r": 2,
    "target_modules": ["qkv", "fc1"],
    "modules_to_save": ["head"],
}


@pytest.fixture(autouse=True)
def package():
    vision("peft")


def adapted(**changes):
    return {
        "type": "peft.get_peft_model",
        "model": VIT,
        "peft_config": {**LORA, **changes},
    }


@pytest.fixture
def run(weights):
    return partial(weights, data=DATA)


@pytest.mark.parametrize("device", [["cpu"], ["ipu", "--emulate"]])
def test_only_the_adapters_learn_and_a_resume_has_the_same_bits(run, device):
    words = ("--device", *device)
    one = {"type": "EpochBasedRunner", "max_epochs": 1}
    start = run("start", "--cfg-options", "optimizer.lr=1e-30", model=adapted())
    whole = run("whole", *words, model=adapted())
    learnt = {name for name in start if not torch.equal(start[name], whole[name])}
    assert learnt
    assert all("lora_" in name or ".modules_to_save." in name for name in learnt)
    run("parts", *words, model=adapted(), runner=one)
    parts = run("parts", *words, "--resume-from", "auto", model=adapted())
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_weights_of_the_model_without_adapters_are_loaded_into_it(run):
    base = run("base", model=VIT)
    inner = [["^", "base_model.model."], ["(qkv|fc1)[.]", r"\1.base_layer."]]
    load = ("--load-from", newest("base"))
    tuned = run("tuned", *load, model=adapted(), revise_keys=inner)
    for name, value in base.items():
        module, _, leaf = name.rpartition(".")
        wrapped = ".base_layer" * module.endswith(("qkv", "fc1"))
        name = f"base_model.model.{module}{wrapped}.{leaf}".replace("..", ".")
        if module != "head":
            assert torch.equal(tuned[name], value), name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target_modules": ["qvk"]}, "get_peft_model"),
        ({"type": "peft.LoraConfg"}, "did you mean 'LoraConfig'"),
        ({"rr": 2}, "did you mean 'r'"),
    ],
)
def test_bad_values_are_one_line(config, train, changes, said):
    line = one_error(train(config(model=adapted(**changes), data=DATA)), 2)
    assert said in line, line
    assert "small.yaml:" in line
