"""The programs in `examples/` do what they say."""

import json
import runpy
import sys

import pytest
import torch

from devrun.cli.main import main
from tests.docs.blocks import ROOT
from tests.support.strict import zip_strict

pytest.importorskip("sklearn")

EXAMPLES = ROOT / "examples"


def example(name):
    """The names that a program of the folder defines."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.fixture
def forgotten():
    """The examples' modules are not there for other tests."""
    yield
    for name in ("own_model", "devrun_cores", "devrun_cores.probes"):
        sys.modules.pop(name, None)


def test_an_own_model_and_own_data_learn_from_a_config(tmp_path, forgotten):
    config = str(EXAMPLES / "own_model.yaml")
    words = ["--import", "own_model", "--device", "cpu", "--work-dir", str(tmp_path)]
    assert main(["train", config, *words]) == 0
    facts = json.loads((tmp_path / "run.json").read_text())
    assert facts["best"]["score"] > 0.8


def test_an_own_hook_ends_the_run_and_keeps_its_state(tmp_path):
    program = example("own_hook")
    first = program["main"](str(tmp_path), seconds=0.0)
    assert first.spent > 0
    (saved,) = (tmp_path / "checkpoints").glob("step-*")
    assert saved.name == "step-00000001"
    again = program["main"](str(tmp_path), seconds=0.0)
    assert again.spent > first.spent


def test_optuna_searches_and_prunes(tmp_path, monkeypatch):
    optuna = pytest.importorskip("optuna", reason="optuna is not here")
    program = example("optuna_digits")
    pruner = optuna.pruners.ThresholdPruner(lower=2)  # no accuracy is
    study = optuna.create_study(direction="maximize", pruner=pruner)
    config = str(ROOT / "configs" / "digits" / "resnet8_digits.yaml")
    study.optimize(lambda trial: program["objective"](trial, config, 2), n_trials=1)
    (trial,) = study.trials
    assert trial.state.name == "PRUNED"
    assert len(trial.intermediate_values) == 1


def test_an_own_device_trains_as_the_cpu_does_and_meters():
    program = example("own_device")
    metered, plain = program["main"](), program["main"]("cpu")
    for mine, theirs in zip_strict(
        metered.model.parameters(), plain.model.parameters()
    ):
        assert torch.equal(mine, theirs)
    images = 1438 * (64 * 4 + 8)  # 8 x 8 floats and a label of int64
    assert metered.adapter.moved == images


def test_an_own_runner_calibrates_after_each_epoch():
    program = example("own_runner")
    runner = program["main"](max_epochs=1)
    norm = next(m for m in runner.model.modules() if hasattr(m, "num_batches_tracked"))
    assert int(norm.num_batches_tracked) == 3  # batches of 120 of 359 images
    assert norm.momentum == 0.1


@pytest.fixture
def plugin(tmp_path, monkeypatch, forgotten):
    """The package as an installer leaves it, on the path."""
    tomllib = pytest.importorskip("tomllib")
    folder = EXAMPLES / "plugin_device"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = tmp_path / "site" / "devrun_cores-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1\n"
    )
    points = project["entry-points"]["devrun.devices"]
    lines = [f"{name} = {target}" for name, target in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[devrun.devices]", *lines]))
    for path in (folder, info.parent):
        monkeypatch.syspath_prepend(str(path))


CONFIG = str(ROOT / "configs" / "digits" / "resnet8_digits.yaml")


def test_a_plugin_device_trains_under_its_name(plugin, tmp_path):
    words = ["--device", "cores", "--work-dir", str(tmp_path / "run")]
    short = ["--cfg-options", "runner.max_epochs=1", "data.samples_per_gpu=512"]
    threads = torch.get_num_threads()
    assert main(["train", CONFIG, *words, *short]) == 0
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["device"]["name"] == "cores"
    assert torch.get_num_threads() == threads


def test_a_plugin_device_brings_its_own_probe(plugin, capsys):
    crowded = ["--cfg-options", "data.workers_per_gpu=256"]
    words = ["--device", "cores", "--steps", "1", "--json", *crowded]
    assert main(["check", CONFIG, *words]) == 0
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    found = {finding["kind"]: finding for finding in device["findings"]}
    fix = found["shared cores"]["fix"]
    assert fix == {"data.workers_per_gpu": device["facts"]["cores"] - 1}


def test_a_plugin_device_refuses_what_it_has_not(plugin, capsys):
    words = ["--device", "cores", "--dry-run", "--cfg-options"]
    assert main(["train", CONFIG, *words, "device={type: cores, count: 9999}"]) == 9
    assert "were asked for: set count to 1 to" in capsys.readouterr().err


def test_hamiltonian_monte_carlo_finds_mean_and_covariance():
    program = example("hamiltonian_monte_carlo")
    found = program["main"](steps=120)
    # of 64 chains over 90 steps, which depend on each other: a tenth of a deviation
    torch.testing.assert_close(found.mean, program["MEAN"], atol=0.15, rtol=0)
    torch.testing.assert_close(
        found.covariance, program["COVARIANCE"], atol=0.3, rtol=0
    )
