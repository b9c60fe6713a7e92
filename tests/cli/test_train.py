import contextlib
import json
import re
import resource
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import one_error, record


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in Path(folder).rglob("*"))


def contents(folder):
    return {
        path: (Path(folder) / path).read_bytes()
        for path in files(folder)
        if (Path(folder) / path).is_file()
    }


def test_a_run_leaves_logs_config_checkpoints_and_its_record(config, train):
    status, out, _ = train(config(), "--work-dir", "out", "--seed", "3")
    assert status == 0
    facts = record("out")
    assert facts["status"] == "done"
    assert facts["exit_code"] == 0
    assert facts["seed"] == 3
    assert facts["device"] == {"name": "cpu", "emulated": False}
    assert (facts["epochs"], facts["iterations"]) == (2, 8)
    assert facts["versions"].keys() == {"python", "torch", "devrun"}
    assert facts["metrics"]
    assert facts["best"]["score"] is not None
    assert Path(facts["last_checkpoint"]).is_dir()
    stamp = facts["timestamp"]
    here = files("out")
    assert {f"{stamp}.log", f"{stamp}.log.json", "config.yaml", "run.json"} <= set(here)
    assert "checkpoints/step-00000008" in here
    assert "8 iterations" in out
    assert f"best: accuracy {facts['best']['score']:.4f}" in out


def test_few_lines_come_before_the_first_of_the_training(config, train):
    assert train(config(), "--work-dir", "out")[0] == 0
    (log,) = Path("out").glob("*.log")
    before = log.read_text().partition("Epoch [1]")[0]
    (first,) = re.findall("environment: devrun .*", before)
    assert f"PyTorch {record('out')['versions']['torch']}" in first
    for words in (
        "run: EpochBasedRunner on cpu",
        "model: MLP, ",
        "schedule: max_epochs 2, max_iters 8",
    ):
        assert words in before
    assert len(re.findall("hook: .* EvalHook ", before)) == 1
    assert len(before.splitlines()) < 20


def test_the_written_config_has_what_the_flags_changed_and_trains(config, train):
    words = ("--work-dir", "out", "--seed", "5", "--cfg-options", "optimizer.lr=0.05")
    assert train(config(), *words)[0] == 0
    written = yaml.safe_load(Path("out/config.yaml").read_text())
    assert written["seed"] == 5
    assert written["work_dir"] == "out"
    assert written["optimizer"]["lr"] == 0.05
    status, _, err = train("out/config.yaml", "--work-dir", "again")
    assert status == 0, err


def test_the_default_directory_moves_on(config, train):
    path = config()
    assert train(path)[0] == 0
    assert train(path)[0] == 0
    assert record("work_dirs/small")["status"] == "done"
    assert record("work_dirs/small-2")["status"] == "done"


def test_a_named_directory_is_not_overwritten(config, train):
    path = config()
    train(path, "--work-dir", "out")
    before = {name: Path("out", name).stat().st_mtime_ns for name in files("out")}
    status, _, err = train(path, "--work-dir", "out")
    assert status == 2
    assert "--resume-from auto" in err
    assert err.count("\n") == 1
    assert {n: Path("out", n).stat().st_mtime_ns for n in files("out")} == before


def test_overwrite_sets_the_old_run_aside(config, train):
    path = config()
    train(path, "--work-dir", "out")
    old = record("out")["timestamp"]
    Path("out/notes.txt").write_text("mine")
    status, _, err = train(path, "--work-dir", "out", "--overwrite")
    assert status == 0
    assert "previous-" in err
    (kept,) = Path("out").glob("previous-*/run.json")
    assert json.loads(kept.read_text())["timestamp"] == old
    assert Path("out/notes.txt").read_text() == "mine"


@pytest.mark.parametrize("auto", [["--resume-from", "auto"], ["--auto-resume"]])
def test_resume_auto_goes_on_and_keeps_the_first_record(config, train, auto):
    train(config(), "--work-dir", "out")
    longer = config("longer.yaml", runner={"type": "EpochBasedRunner", "max_epochs": 3})
    status, _, err = train(longer, "--work-dir", "out", *auto)
    assert status == 0, err
    assert "resumed epoch: 2" in err
    assert record("out")["iterations"] == 12
    (first,) = Path("out").glob("run-*.json")
    assert json.loads(first.read_text())["iterations"] == 8


@pytest.mark.parametrize("path", ["latest", "out/latest", "out/checkpoints/latest"])
def test_the_newest_by_another_word_is_told_the_right_one(config, train, path):
    train(config(), "--work-dir", "out")
    status, _, err = train(config(), "--work-dir", "out", "--resume-from", path)
    assert status == 3
    (line,) = [line for line in err.splitlines() if "error: " in line]
    assert "--work-dir DIR --resume-from auto" in line
    status, _, err = train(config(), "--work-dir", "out", "--resume-from", "auto")
    assert status == 0, err


@pytest.fixture
def full_disk():
    """`with full_disk():` no file of this process can grow."""

    @contextlib.contextmanager
    def full():
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return full


def test_a_resume_on_a_full_disk_leaves_everything_as_it_was(config, train, full_disk):
    path = config()
    train(path, "--work-dir", "out")
    before = contents("out")
    assert before["config.yaml"] and before["run.json"]
    with full_disk():
        result = train(path, "--work-dir", "out", "--resume-from", "auto")
    assert "config.yaml" in one_error(result, 8)
    assert contents("out") == {**before, "run.lock": b""}  # which says nothing now


def test_resume_auto_without_anything_starts_afresh_and_says_so(config, train):
    status, _, err = train(config(), "--work-dir", "out", "--resume-from", "auto")
    assert status == 0
    assert "starting from scratch" in err


def test_a_dry_run_writes_nothing(config, train, tmp_path):
    path = config()
    before = files(tmp_path)
    status, out, err = train(path, "--dry-run")
    assert status == 0, err
    assert "nothing was written" in out
    assert "2 iterations" in out
    assert files(tmp_path) == before


def test_no_validate_leaves_the_evaluation_out(config, train):
    assert train(config(), "--work-dir", "out", "--no-validate")[0] == 0
    assert record("out")["metrics"] == {}


@pytest.mark.parametrize(
    ("words", "changes", "status", "said"),
    [
        ("--device cpu --ipu-replicas 2", {}, 2, "clash"),
        ("--device cudaa", {}, 2, "did you mean 'cuda'?"),
        ("--device ipu", {}, 9, "is not here"),
        ("--cfg-options optimizer.lr", {}, 2, "optimizer.lr"),
        ("--cfg-options lr_config.policy=Cosin", {}, 2, "'CosineAnnealing'"),
        ("--work-dir small.yaml/out", {}, 2, "not writable"),
        ("", {"optimzer": {"type": "SGD"}}, 2, "did you mean 'optimizer'?"),
        ("", {"model": {"type": "MLPP"}}, 2, "did you mean 'MLP'?"),
        ("", {"model": {"type": "MLP", "hiden": [8]}}, 2, "did you mean 'hidden'?"),
        ("", {"evaluation": {"metric": "acuracy"}}, 2, "did you mean 'accuracy'?"),
        ("", {"evaluation": {"intervl": 2}}, 2, "did you mean 'interval'?"),
        ("", {"evaluation": {"save_best": "x"}}, 2, "give rule='greater'"),
        ("", {"optimizer": {"type": "SGD", "lr": 1e30}}, 5, "iteration"),
    ],
)
def test_what_cannot_be_is_one_line(config, train, words, changes, status, said):
    text = one_error(train(config(**changes), *words.split()), status)
    assert said in text
    assert words or status != 2 or "small.yaml:" in text


def test_a_first_hook_and_another_optimizer_from_the_command_line(config, train):
    hook = "custom_hooks=[{type: EMAHook, momentum: 0.1}]"
    other = "optimizer={_delete_: true, type: AdamW, weight_decay: 0.1}"
    path = config(optimizer={"type": "SGD", "lr": 0.1, "momentum": 0.9})
    status, _, err = train(path, "--work-dir", "w", "--cfg-options", hook, other)
    assert status == 0, err
    kept = yaml.safe_load(Path("w/config.yaml").read_text())
    assert kept["optimizer"] == {"type": "AdamW", "weight_decay": 0.1}
    assert kept["custom_hooks"] == [{"type": "EMAHook", "momentum": 0.1}]


def test_a_checkpoint_that_is_not_there(config, train):
    text = one_error(train(config(), "--work-dir", "out", "--load-from", "none"), 3)
    assert "load_from: there is no 'none'" in text
    assert not Path("out").exists()


def test_a_checkpoint_named_almost_right(config, train):
    path = config()
    assert train(path, "--work-dir", "out")[0] == 0
    before = files("out")
    wrong = "out/checkpoints/step-0000008"
    text = one_error(train(path, "--resume-from", wrong), 3)
    assert "did you mean 'out/checkpoints/step-00000008'?" in text
    for wrong in ("out/x.ckpt", "out/latest.pth"):
        text = one_error(train(path, "--resume-from", wrong), 3)
        assert "known: out/checkpoints/" in text
    assert files("out") == before


def test_a_run_is_named_by_its_folder(config, train):
    """To go on with, or for its weights: its newest checkpoint is meant."""
    path = config()
    train(path, "--work-dir", "out", "--cfg-options", "runner.max_epochs=1")
    for place, epoch in (("out", 1), ("out/checkpoints", 2)):
        status, _, err = train(
            path,
            "--resume-from",
            place,
            "--cfg-options",
            f"runner.max_epochs={epoch + 1}",
        )
        assert status == 0, err
        assert f"resumed epoch: {epoch}, " in err
    assert train(path, "--work-dir", "new", "--load-from", "out")[0] == 0
    Path("lightning.ckpt").write_bytes(b"PK")
    text = one_error(train(path, "--resume-from", "lightning.ckpt"), 3)
    assert "no checkpoint directory" in text and "--load-from" in text


def test_a_run_that_is_complete_says_that_nothing_is_left(config, train):
    path = config(workflow=[["train", 1], ["val", 1]])
    assert train(path, "--work-dir", "out")[0] == 0
    # the evaluation's values and those of the val phase after it
    assert {"accuracy", "loss"} <= record("out")["metrics"].keys()
    status, _, err = train(path, "--work-dir", "out", "--resume-from", "auto")
    assert status == 0
    assert "nothing is left to train: 2 epochs and 8 iterations are done" in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data: {train: {num_samples: x}}", "2: data.train.num_samples: "),
        ("optimizer: {lr: '0.1'}", "text was given as lr;"),
        ("model: {hidden: 8}", "2: model.hidden: MLP: must be a list of widths"),
        ("runner: {type: EpochRunner}", "2: runner.type: 'EpochRunner' is not"),
        ("custom_hooks: [{interval: 1}]", "2: custom_hooks.0: a hook config needs a"),
        (
            "custom_hooks: [{type: EMAHook, priority: HIGHER}]",
            "2: custom_hooks.0.priority: no priority 'HIGHER'; did you mean 'HIGH'?",
        ),
        ("seed: '3'", "a number has no quotes"),
    ],
)
def test_a_wrong_value_has_its_own_line_not_that_of_the_base(
    config, train, tmp_path, text, says
):
    config()
    (tmp_path / "child.yaml").write_text(f"_base_: small.yaml\n{text}\n")
    assert says in one_error(train("child.yaml"), 2)


NEVER_BETTER = {"type": "EarlyStoppingHook", "patience": 2, "min_delta": 100.0}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "max_epochs is reached (2)"),
        (
            {"runner": {"type": "IterBasedRunner", "max_iters": 3}},
            "max_iters is reached (3)",
        ),
        (
            {"custom_hooks": [NEVER_BETTER], "runner": {"max_epochs": 9}},
            "at best) did not improve in 2 evaluations",
        ),
    ],
)
def test_a_run_says_why_it_ended(config, train, changes, why):
    status, out, err = train(config(**changes), "--work-dir", "out")
    assert status == 0, err
    (line,) = [line for line in out.splitlines() if line.startswith("stopped: ")]
    assert line.endswith(why)
    assert line in err  # the log
    record = json.loads(Path("out/run.json").read_text())
    assert f"stopped: {record['stopped']}" == line


@pytest.mark.parametrize(
    ("device", "lines"),
    [
        (["cpu"], ["performance: fast on cpu sets fused: True"]),
        (["ipu", "--emulate"], ["performance: fast changes nothing on an IPU: "]),
    ],
)
def test_a_dry_run_lists_what_fast_switches(config, train, device, lines):
    words = ["--device", *device, "--performance", "fast", "--dry-run"]
    status, _, err = train(config(), *words, "--no-progress")
    assert status == 0, err
    assert all(line in err for line in lines), err
