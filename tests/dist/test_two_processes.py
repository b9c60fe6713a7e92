"""Two real processes over gloo against one process with the doubled batch."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from devrun.data.sampler import EpochBatchSampler
from tests.dist.worker import Losses, net, runner_of, samples, sgd
from tests.support import zygote
from tests.support.near import assert_near
from tests.support.ranks import found_by
from tests.support.strict import zip_strict

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("worker.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the two processes found, by rank; they are started as torchrun would."""
    folder = tmp_path_factory.mktemp("ranks")
    results, said = found_by(SCRIPT, folder)
    for rank, result in enumerate(results):
        result["said"] = said[rank]
        result["folder"] = folder
    return results


def test_each_process_knows_its_place(ranks):
    for rank, found in enumerate(ranks):
        info = found["info"]
        assert (info["rank"], info["world"], info["local"]) == (rank, 2, rank)
        assert info["main"] is (rank == 0)
        assert info["master_only"] == ("main" if rank == 0 else None)


def test_objects_travel(ranks):
    for found in ranks:
        assert found["info"]["gathered"] == [{"rank": 0}, {"rank": 1}]
        assert found["info"]["broadcast"] == "from 0"
        assert found["info"]["max"] == 1.0
    assert ranks[0]["info"]["seed"] == ranks[1]["info"]["seed"]


def test_metrics_are_means_over_the_ranks_that_have_them(ranks):
    for found in ranks:
        assert found["means"] == {"loss": 0.5, "both": 3.0, "only_here": 7.0}


def test_buffers_are_averaged_and_counters_taken_from_rank_0(ranks):
    for found in ranks:
        assert found["tensors"]["mean"] == [0.5, 0.5]
        assert found["tensors"]["count"] == 10


def test_gradients_are_averaged_also_where_a_rank_has_none(ranks):
    for found in ranks:
        assert found["tensors"]["used"] == [1.5, 1.5]
        assert found["tensors"]["half"] == [0.5, 0.5]
        assert found["tensors"]["unused"] is None


def doubled():
    """One process whose batch is twice as big, over the same order of samples."""
    model = net()
    optimizer = sgd(model)
    inputs, labels = samples().tensors
    sampler = EpochBatchSampler(16, 4, shuffle=True, seed=0, drop_last=False)
    losses = []
    for batch in sampler:
        chosen = [key.index for key in batch]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().flatten().tolist() for p in model.parameters()]


def assert_weights(mine, theirs, **how):
    for one, other in zip_strict(mine, theirs):
        assert one == pytest.approx(other, **(how or {"rel": 1e-4, "abs": 1e-6}))


def test_a_step_of_the_model_equals_one_process_with_the_doubled_batch(ranks):
    losses, weights = doubled()
    for found in ranks:
        assert found["model"]["losses"] == pytest.approx(losses, rel=1e-4)
        assert_weights(found["model"]["weights"], weights)
        assert found["model"]["unwrapped"]
    assert ranks[0]["model"]["weights"] == ranks[1]["model"]["weights"]


def test_a_bad_loss_on_one_rank_is_skipped_by_both(ranks):
    for found in ranks:
        assert found["skipped"] == {"kept": True, "moved": True}


def test_a_bad_loss_on_one_rank_stops_both(ranks):
    assert "another rank" in ranks[0]["stopped"]
    assert "nan" in ranks[1]["stopped"]


@pytest.mark.parametrize("name", ["adapter", "hook"])
def test_the_runner_trains_as_one_process_with_the_doubled_batch(ranks, name):
    model = net()
    runner = runner_of(model, max_epochs=2)
    losses = Losses()
    runner.register_hook(losses)
    data = torch.utils.data.DataLoader(samples(), 4, shuffle=True)
    runner.run([data], [("train", 1)])
    runner.close()
    for found in ranks:
        mine = found["runs"][name]
        assert mine["iter"] == runner.iter == 8
        assert mine["losses"] == pytest.approx(losses.values, rel=1e-4)
        weights = [p.detach().flatten().tolist() for p in model.parameters()]
        assert_weights(mine["weights"], weights)


def test_only_rank_0_logs_the_mean_and_saves_once(ranks):
    folder = ranks[0]["folder"] / "adapter"
    (log,) = folder.glob("*.log.json")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    logged = [line["loss"] for line in lines if line.get("mode") == "train"]
    means = ranks[0]["runs"]["adapter"]["losses"]
    assert logged == pytest.approx(means, abs=1e-4)
    assert "loss:" not in ranks[1]["said"]
    assert len(list((folder / "checkpoints").glob("step-*"))) == 2


def test_all_ranks_evaluate_with_the_statistics_of_rank_0(ranks):
    for found in ranks:
        assert found["evaluated"] == [0.0, 0.0, 0.0]


@pytest.mark.slow
def test_a_failure_on_rank_0_is_heard_by_all(ranks):
    first, second = (found["failed on main"] for found in ranks)
    assert first == ["ZeroDivisionError: by hand", "StorageError: disk full", "fine"]
    assert second == [
        "DevrunError: rank 0 failed: ZeroDivisionError: by hand",
        "StorageError: disk full",
        "fine",
    ]


def test_one_rank_short_of_memory_makes_all_divide_their_batches(ranks):
    for found in ranks:
        assert found["split"]["split size"] == 2
        assert_near(found["split"]["split"], found["split"]["whole"])


DISAGREEMENTS = {
    "samples": "updates per epoch of the data of phase 1 is 2 on rank 0, 3 on rank 1",
    "evaluation": "samples of the evaluation data is 8 on rank 0, 9 on rank 1",
    "model": "the model is 'Linear with 2 parameters (",
    "epochs": "max_epochs or max_iters is (1, None) on rank 0, (2, None) on rank 1",
    "hooks": "the list of hooks is ['Values'] on rank 0, ['EvalHook', 'Values'] on",
    "seed": "seed is 3 on rank 0, None on rank 1",
    "config": "optimizer.lr is 0.1 on rank 0, 1.1 on rank 1",
}


def test_ranks_that_differ_are_refused_at_the_start_by_name(ranks):
    first, second = (found["disagreements"] for found in ranks)
    assert first == second
    for name, words in DISAGREEMENTS.items():
        assert first[name].startswith("ConfigError: the processes of this run differ: ")
        assert words in first[name]
        assert "\n" not in first[name]
    assert first["own folder"] == "accepted"
    assert "drop_last drops them" in first["dropped"]


def test_fewer_samples_to_evaluate_on_than_processes(ranks):
    found = ranks[0]["few samples"]
    names = {
        "means": ["accuracy", "eval_iter_num", "loss"],
        "own state": ["Seen", "eval_iter_num", "loss"],
        "judged": ["eval_iter_num", "judged"],
    }
    for name, logged in names.items():
        assert found[name] == [logged] * 2
    assert [set(v) >= {"loss"} for v in found["phase"]] == [True] * 2
    assert not any(ranks[1]["few samples"].values())  # rank 0 logs


@pytest.mark.parametrize("torchrun", [False, True])
def test_a_group_that_was_left_does_not_keep_the_next_from_forming(tmp_path, torchrun):
    again = SCRIPT.with_name("again.py")
    if torchrun:
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = zygote.run([*words, again, tmp_path], env, tmp_path, 180)
        assert done.returncode == 0, done.stderr
    else:
        running = zygote.start_ranks([again, tmp_path], tmp_path)
        said = [process.communicate(timeout=180)[1] for process in running]
        assert [process.returncode for process in running] == [0, 0], said
    for rank in range(2):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found == [[[0, number], [1, number]] for number in range(4)]
