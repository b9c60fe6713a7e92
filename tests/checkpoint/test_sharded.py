"""Checkpoints that three processes write together, each its own pieces."""

import json
from pathlib import Path

import pytest

from devrun.checkpoint import list_checkpoints, sweep_leftovers, verify_checkpoint
from tests.support import zygote

SCRIPT = Path(__file__).with_name("sharded_worker.py")
RANKS = range(3)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the processes found, by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    running = zygote.start_ranks([SCRIPT, folder], cwd=folder, count=len(RANKS))
    said = [process.communicate(timeout=200)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 3, "\n".join(said)
    return [json.loads((folder / f"rank{r}.json").read_text()) for r in RANKS]


def test_each_process_writes_its_pieces_and_one_reads_them_whole(ranks):
    found = ranks[0]["save"]
    assert found["same"]
    assert found["tied"]
    assert found["hooks"] == 0
    assert found["files"] == [
        "MANIFEST.json",
        "hooks.json",
        "hooks.safetensors",
        "model.json",
        "optimizer.json",
        *(f"shard-{n + 1:05d}-model-00001-of-00001.safetensors" for n in RANKS),
    ]


def test_in_the_background_it_is_the_state_of_the_call(ranks):
    assert ranks[0]["background"] == [True, True]


def test_a_disk_that_refuses_any_rank_is_one_line_on_all(ranks):
    for found in ranks:
        refused = found["refused"]
        for failure, said in refused["said"].items():
            assert said.startswith("StorageError: cannot write checkpoint"), failure
            assert f": rank {failure[0]}: " in said
            assert "\n" not in said
        assert refused["left"] == ["latest.json", "step-00000001"]
    assert ranks[0]["refused"]["same"]


def test_so_it_is_in_the_background_and_the_next_one_is_saved(ranks):
    for found in ranks:
        said, steps = found["refused_in_background"]
        assert "rank 1: No space left on device" in said
        assert steps == [2]


def test_what_one_rank_cannot_save_none_writes(ranks):
    for rank, found in enumerate(ranks):
        said, written = found["not_encodable"]
        assert "model['odd'] is a builtins.object" in said
        assert ("rank 1: " in said) is (rank != 1)
        assert not written


def test_room_is_looked_for_before_anything_is_written(ranks):
    for found in ranks:
        assert "free some space" in found["no_room"]
        assert "that is no checkpoint stands there" in found["taken_name"]


def test_a_directory_that_not_all_see_is_one_line(ranks):
    for found in ranks:
        said, left = found["not_shared"]
        assert "rank 1 does not see what rank 0 made in" in said
        assert left == []


@pytest.mark.parametrize("failpoint", ["open:1:kill", "write:1:torn", "fsync:1:kill"])
def test_a_process_that_dies_in_a_save_leaves_the_one_before(tmp_path, failpoint):
    running = zygote.start_ranks([SCRIPT, tmp_path, failpoint], tmp_path, count=3)
    for process in running:
        process.communicate(timeout=100)
    assert [process.returncode for process in running] == [0, 0, -9]
    for rank in (0, 1):
        assert (tmp_path / f"ended{rank}").exists()
    sweep_leftovers(tmp_path)
    assert [info.step for info in list_checkpoints(tmp_path)] == [1]
    verify_checkpoint(tmp_path / "step-00000001")
    assert not list(tmp_path.glob(".tmp-*"))
