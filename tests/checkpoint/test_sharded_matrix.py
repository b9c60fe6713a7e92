"""Saved by so many processes under one strategy, resumed by others under another.

The same weights and the same state of the optimizer, to the bit; and the update after
it sees the same samples, so that the weights stay close to those of the run that saved.
"""

import itertools
import json
from pathlib import Path

import pytest

from tests.support import zygote

SCRIPT = Path(__file__).with_name("matrix_worker.py")
ALL = [f"{world}-{kind}" for world in (1, 2, 4) for kind in ("none", "ddp", "fsdp")]
SENSELESS = ["2-none", "4-none"]
"""Refused: several processes that train one model must average its gradients."""
QUICK = ["1-none", "2-fsdp"]
FURTHER = ["3-fsdp", "4-hybrid", "2-tensor", "4-fsdptensor"]


def started(folder, name, *words):
    """What the processes of `name` found, or said."""
    world = int(name.split("-")[0])
    arguments = [SCRIPT, folder, name, *words]
    if world == 1:
        running = [zygote.start(arguments, cwd=folder)]
    else:
        running = zygote.start_ranks(arguments, folder, count=world)
    said = [process.communicate(timeout=250)[1] for process in running]
    assert [process.returncode for process in running] == [0] * world, "\n".join(said)
    return json.loads((folder / f"{words[0]}-{name}.json").read_text())


def assert_kept(found):
    assert found["model"]
    assert found["optimizer"]
    assert found["drift"] < 2e-5


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    for name in QUICK:
        assert started(folder, name, "save") == "saved"
    return folder


def test_only_what_is_divided_is_in_pieces(saved):
    assert not list(saved.glob("1-none/*/shard-*"))
    assert len(list(saved.glob("2-fsdp/step-00000003/shard-*"))) == 2


@pytest.mark.parametrize("name", ["1-none", "2-ddp", "2-fsdp"])
def test_it_goes_on_on_others(saved, name):
    for found in started(saved, name, "load", *QUICK).values():
        assert_kept(found)


@pytest.mark.slow
def test_a_full_one_is_as_of_one_process(tmp_path):
    assert started(tmp_path, "2-fsdp", "save", "full") == "saved"
    assert not list(tmp_path.glob("2-fsdp/*/shard-*"))
    assert_kept(started(tmp_path, "1-none", "load", "2-fsdp")["2-fsdp"])


@pytest.mark.slow
def test_in_the_background_and_pruned(tmp_path):
    assert started(tmp_path, "2-fsdp", "save", "async") == "saved"
    kept = sorted(path.name for path in tmp_path.glob("2-fsdp/step-*"))
    assert kept == ["step-00000003", "step-00000004"]
    assert_kept(started(tmp_path, "1-none", "load", "2-fsdp")["2-fsdp"])


@pytest.mark.slow
def test_every_pair(tmp_path):
    """Of the 81 pairs 49 are resumed; the others name a run that cannot be."""
    kept, refused = matrix(tmp_path, ALL)
    assert (kept, refused) == (49, 32)


@pytest.mark.slow
def test_every_pair_with_other_meshes(tmp_path):
    names = [*QUICK, *FURTHER]
    assert matrix(tmp_path, names) == (len(names) ** 2, 0)


def matrix(folder, names):
    """How many pairs of `names` kept everything, and how many make no sense."""
    for name in names:
        said = started(folder, name, "save")
        assert ("type none is for 1 process" in said) is (name in SENSELESS)
        assert said == "saved" or name in SENSELESS
    possible = [name for name in names if name not in SENSELESS]
    kept = 0
    for name in possible:
        for found in started(folder, name, "load", *possible).values():
            assert_kept(found)
            kept += 1
    pairs = len(list(itertools.product(names, names)))
    return kept, pairs - kept
