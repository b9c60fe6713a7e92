"""What went wrong in other trainers, tried here.

Each test is named after the fault; where one is proved elsewhere in this suite,
benchmarks/FAULTS.md says by which test.
"""

import os

import pytest
import torch

from devrun.checkpoint import (
    find_latest,
    read_checkpoint,
    step_name,
    write_checkpoint,
)
from devrun.errors import CheckpointError, StorageError
from tests import failpoints
from tests.faults import harness
from tests.faults.harness import numbers, run


def put(root, step, **about):
    parts = {"model": {"w": torch.full((2,), float(step))}}
    return write_checkpoint(root, step_name(step), parts, {"step": step, **about})


def test_a_name_in_a_checkpoint_is_never_imported(tmp_path):
    """Strings that name functions come back as strings."""
    tree = {"optimizer": "os.system", "_target_": "os.system", "args": ["touch ran"]}
    path = write_checkpoint(tmp_path, "step-00000001", {"hooks": tree}, {"step": 1})
    assert read_checkpoint(path)["hooks"] == tree


def test_a_save_that_is_not_permitted_is_an_error(tmp_path, monkeypatch):
    put(tmp_path, 1)
    failpoints.arm("mkdir:1:EACCES", monkeypatch.setattr)
    with pytest.raises(StorageError, match="Permission denied"):
        put(tmp_path, 2)
    assert find_latest(tmp_path).name == step_name(1)


@pytest.mark.parametrize("saving", numbers({"async": True}, {}))
def test_the_old_one_is_deleted_after_the_new_one_is_durable(saving, tmp_path):
    """With one to keep, there is a whole one whenever the disk is looked at."""
    keep_one = {"interval": 1, "by_epoch": False, "max_keep_ckpts": 1, **saving}
    harness.write_config(tmp_path, checkpoint_config=keep_one)
    words = harness.train(tmp_path)
    child = harness.Child(harness.command, *words, output=tmp_path / "output")
    root, looks = tmp_path / "work" / "checkpoints", 0
    harness.wait_for(lambda: root.exists() and list(root.glob("step-*")))
    while child.running():
        names = [n for n in os.listdir(root) if n.startswith("step-")]
        assert names
        looks += 1
    assert child.wait() == 0
    assert looks > 10


def test_what_is_half_written_is_never_the_newest(tmp_path):
    put(tmp_path, 1)
    half = tmp_path / step_name(2)
    half.mkdir()
    (half / "model.json").write_text("{}")
    (tmp_path / "latest.json").write_text('{"checkpoint": "step-00000002", "step": 2}')
    assert find_latest(tmp_path).name == step_name(1)


def test_random_state_that_cannot_be_restored_is_an_error(undisturbed, tmp_path):
    place = undisturbed(runner={"type": "IterBasedRunner", "max_iters": 4})
    newest = read_checkpoint(harness.newest(place / "work" / "checkpoints"))
    parts = dict(newest.parts)
    parts["rng-rank00000"]["host"]["torch"] = "AAAA"
    about = {"step": newest.step, "run_id": newest.manifest.run_id}
    mutant = write_checkpoint(tmp_path / "m", step_name(4), parts, about)
    harness.write_config(tmp_path)
    words = [w for w in harness.train(tmp_path) if w not in ("--resume-from", "auto")]
    words += ["--resume-from", mutant]
    status, said = run(harness.command, *words, output=tmp_path / "output")
    assert status == 3, said
    assert "random state" in said or "rng" in said


def test_a_checkpoint_holds_trained_weights_not_averaged_ones(tmp_path):
    """Also the best one, which is saved while the averaged ones were just in use."""
    validated = {
        "data": {**harness.CONFIG["data"], "val": {"type": "Noisy", "length": 8}},
        "evaluation": {"interval": 4, "by_epoch": False, "save_best": "accuracy"},
        "runner": {"type": "IterBasedRunner", "max_iters": 4},
        "checkpoint_config": {"interval": 4, "by_epoch": False},
    }
    validated["evaluation"]["metric"] = "accuracy"
    harness.write_config(tmp_path, **validated)
    words = harness.train(tmp_path)
    status, said = run(harness.command, *words, output=tmp_path / "output")
    assert status == 0, said
    root = tmp_path / "work" / "checkpoints"
    (best,) = [p for p in root.glob("best_*") if p.is_dir()]
    ours, theirs = read_checkpoint(best), read_checkpoint(root / step_name(4))
    averaged = theirs["hooks"]["EMAHook"]["model"]
    for name, weight in theirs["model"].items():
        assert torch.equal(ours["model"][name], weight)
    assert not torch.equal(theirs["model"]["0.weight"], averaged["0.weight"])


def test_a_pickle_is_refused_under_every_name(tmp_path):
    import pickle

    for name in ("model.safetensors", "model.json", "MANIFEST.json"):
        path = put(tmp_path / name, 1)
        (path / name).write_bytes(pickle.dumps({"w": 1}))
        with pytest.raises(CheckpointError):
            read_checkpoint(path)
