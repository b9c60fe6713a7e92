"""A benchmark's log passes the checker of MLCommons, and its result is by the rules."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from devrun.cli.benchmark import result_line
from devrun.cli.main import main
from devrun.errors import ConfigError
from tests.support.packages import let_torchvision_load

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "configs" / "digits" / "resnet8_digits.yaml"
CIFAR = ROOT / "configs" / "resnet" / "resnet18_8xb16_cifar10.py"


@pytest.fixture
def check(monkeypatch, tmp_path):
    """What the checker says of a log: training 4.0.0."""
    pytest.importorskip("mlperf_logging")
    from mlperf_logging.compliance_checker import mlp_compliance

    def passes(path):
        checker = mlp_compliance.make_checker("training", "4.0.0", True, False)
        return checker.check_file(str(path), "training_4.0.0/common.yaml")

    monkeypatch.chdir(tmp_path)
    return passes


def events(path):
    lines = Path(path).read_text().splitlines()
    return [json.loads(line.partition(":::MLLOG ")[2]) for line in lines]


def train(config, target, *changes, work_dir="work"):
    words = ["train", str(config), "--device", "cpu", "--no-progress"]
    words += ["--work-dir", work_dir, "--cfg-options", f"benchmark.target={target}"]
    return main([*words, *changes])


@pytest.mark.slow
def test_several_seeds_to_the_target(check, capfd):
    assert train(DIGITS, "{accuracy: 0.9}", "benchmark.runs=3") == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("MLPerf-style (unofficial, not verified by MLCommons): ")
    logs = sorted(Path("work").glob("*/*.mlperf.txt"))
    assert len(logs) == 3 and all(check(log) for log in logs)
    found = {e["key"]: e for e in events(logs[1])}
    assert found["seed"]["value"] == 1
    assert found["run_stop"]["metadata"]["status"] == "success"
    assert found["eval_accuracy"]["value"] >= 0.9
    assert (found["train_samples"]["value"], found["eval_samples"]["value"]) == (
        1438,
        359,
    )
    assert "unofficial" in found["submission_org"]["value"]


@pytest.mark.slow
def test_a_cifar_layout_passes_and_a_missed_target_is_one_line(check, capfd):
    folder = Path("data/cifar10")
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        table = draw.integers(0, 10, (4, 3073), dtype=np.uint8)
        (folder / f"{name}.bin").write_bytes(table.tobytes())
    short = ("runner.max_epochs=1", "data.workers_per_gpu=0")
    assert train(CIFAR, "{accuracy: 0.999}", *short) == 0
    said = [x for x in capfd.readouterr().err.splitlines() if "was not reached" in x]
    assert len(said) == 1 and "the target accuracy 0.999 was not reached" in said[0]
    (log,) = Path("work").glob("*.mlperf.txt")
    assert check(log)
    assert events(log)[-1]["metadata"]["status"] == "aborted"
    assert train(CIFAR, "{accuracy: 0.0}", *short, work_dir="reached") == 0
    (log,) = Path("reached").glob("*.mlperf.txt")
    assert check(log)
    assert events(log)[-1]["metadata"]["status"] == "success"


SMALL_GPT = [
    "evaluation.metric=accuracy", "evaluation.save_best=accuracy",
    "evaluation.interval=2", "runner.max_iters=2", "model.n_layer=1",
    "data.val.max_bytes=2000", "data.train.max_bytes=4000",
]  # fmt: skip
SMALL_RESNET = [
    "evaluation.metric=accuracy", "evaluation.save_best=accuracy",
    "runner.max_epochs=1", "model.num_classes=2",
    "data.samples_per_gpu=4", "data.workers_per_gpu=0",
    *(f"data.{place}.size=32" for place in (
        "train.pipeline.0", "val.pipeline.0", "val.pipeline.1")),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ("gpt/gpt_tiny_stdlib.yaml", SMALL_GPT),
        ("imagenet/resnet50_imagefolder.yaml", SMALL_RESNET),
    ],
)
def test_logs_of_the_large_recipes_pass(config, changes, check):
    if changes is SMALL_RESNET:
        image = pytest.importorskip("PIL.Image")
        if importlib.util.find_spec("torchvision") is None:
            pytest.skip("the recipe crops by torchvision")
        let_torchvision_load()
        draw = np.random.default_rng(0)
        for number in range(16):
            kind = "train" if number < 12 else "val"
            place = Path("data", "imagenet", kind, f"n{number % 2}", f"{number}.png")
            place.parent.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            image.fromarray(pixels).save(place)
    assert train(ROOT / "configs" / config, "{accuracy: 0.0}", *changes) == 0
    (log,) = Path("work").glob("*.mlperf.txt")
    assert check(log)
    assert events(log)[-1]["metadata"]["status"] == "success"


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("{}", "takes one result and its number"),
        ("{accuracy: high}", "takes one result and its number"),
        ("{score: 1}", "cannot tell from the name 'score' whether more is better"),
    ],
)
def test_a_target_that_no_run_could_reach_starts_none(target, what, tmp_path, capsys):
    """`{score: 1}` is refused by the hook, the others before the package is asked."""
    if "score" in target:
        pytest.importorskip("mlperf_logging")
    work_dir = tmp_path / "work"
    assert train(DIGITS, target, "benchmark.runs=3", work_dir=str(work_dir)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert what in line
    assert not work_dir.exists()


@pytest.mark.slow
def test_no_run_follows_one_that_failed(check, capfd):
    """`top5` is no result of this recipe, which its first evaluation says."""
    short = ("benchmark.runs=3", "runner.max_epochs=1", "data.train.split=val")
    assert train(DIGITS, "{top5: 0.9}", *short) == 2
    said = [x for x in capfd.readouterr().err.splitlines() if "devrun: error" in x]
    assert len(said) == 1 and "'top5', which is not a result" in said[0]
    assert [place.name for place in Path("work").iterdir()] == ["seed=0"]


def test_a_benchmark_without_evaluation_is_refused(check, capsys):
    words = ["train", str(DIGITS), "--no-validate", "--work-dir", "work"]
    target = "benchmark.target={accuracy: 0.9}"
    assert main([*words, "--device", "cpu", "--cfg-options", target]) == 2
    assert "leave --no-validate out" in capsys.readouterr().err.splitlines()[-1]
    assert not list(Path("work").glob("*.mlperf.txt"))


def test_without_the_package_is_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "mlperf_logging.mllog.mllog", None)
    monkeypatch.chdir(tmp_path)
    assert train(DIGITS, "{accuracy: 0.9}", "runner.max_epochs=1") == 2
    assert "pip install mlperf-logging" in capsys.readouterr().err.splitlines()[-1]


def test_the_fastest_and_the_slowest_run_do_not_count():
    assert ": accuracy 0.9 in 4.000 s, mean of 3 of 5" in result_line(
        [9.0, 1.0, 3.0, 4.0, 5.0], "accuracy 0.9"
    )
    # one that missed the target is the slowest
    assert " in 5.000 s, mean of 3 of 5" in result_line([3.0, 4, None, 5, 6], "x 1")
    assert " in 2.000 s, mean" in result_line([1.0, 3.0], "x 1")
    with pytest.raises(ConfigError, match="no result: 2 of 5 runs did not reach x 1"):
        result_line([3.0, None, 4.0, None, 5.0], "x 1")
