"""Retention counts exactly, never deletes the last good one, and nothing foreign."""

import logging
import os

import pytest

from devrun.checkpoint import (
    find_latest,
    list_checkpoints,
    prune,
    step_name,
    write_pointer,
)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoints"


def steps(root):
    return [info.step for info in list_checkpoints(root)]


def flip(path):
    """Damage that only the hash shows."""
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def test_the_list_says_what_is_wrong(save, root):
    save(1)
    (save(2) / "model.json").unlink()
    good, bad = list_checkpoints(root)
    assert good.problem is None
    assert "model.json is missing" in bad.problem
    assert bad.step == 2


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_exactly_as_many_as_asked_for_stay(save, root, keep):
    for step in range(1, 6):
        save(step)
        prune(root, keep)
    assert steps(root) == list(range(6 - keep, 6))


def test_the_best_is_outside_the_count(save, root):
    for step in range(1, 7):
        save(step)
    write_pointer(root, "best", step_name(1), 1)
    prune(root, 2)
    assert steps(root) == [1, 5, 6]


def test_another_kind_of_name_is_neither_counted_nor_deleted(save, root):
    save(1, name="best_accuracy")
    save(9, name="final")
    for step in (2, 3):
        save(step)
    prune(root, 1)
    assert steps(root) == [1, 3, 9]


def test_nothing_is_deleted_when_no_newer_one_verifies(save, root, caplog):
    for step in (1, 2, 3):
        save(step)
    for step in (2, 3):
        flip(root / step_name(step))
    with caplog.at_level(logging.WARNING):
        assert prune(root, 1) == []
    assert steps(root) == [1, 2, 3]
    assert "sha256" in caplog.text
    assert find_latest(root) == root / step_name(1)


def test_foreign_files_stay(save, root):
    for step in (1, 2):
        save(step)
    (root / "step-00000000").mkdir()
    (root / "step-00000000" / "My File").write_text("keep")
    (root / "notes.txt").write_text("keep")
    prune(root, 1)
    assert set(os.listdir(root)) == {
        "latest.json",
        "notes.txt",
        "step-00000000",
        step_name(2),
    }
