"""Two processes on gloo: one log, every sample evaluated once and in order."""

import json

import pytest
import torch

from tests.support import zygote
from tests.support.points import model, samples
from tests.support.strict import zip_strict

SCRIPT = """
import json, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
from devrun.dist import close_dist, get_dist_info, init_dist
from devrun.hooks.evaluation import DistEvalHook, EvalHook
from devrun.hooks.logger import TextLoggerHook
from tests.support.points import loader, make_runner, samples
from tests.support.strict import zip_strict

init_dist("pytorch", "gloo", timeout=60)


class Listed(TensorDataset):
    def evaluate(self, results, logger=None):
        assert get_dist_info()[0] == 0
        return {"matches": sum(
            float((torch.from_numpy(r) - net(x)).abs().max()) < 1e-5
            for r, (x, _) in zip_strict(results, self)
        )}


data = samples(13)
listed = Listed(*data.tensors)
first = EvalHook(DataLoader(data, batch_size=4), metric="accuracy")
listed = DataLoader(listed, batch_size=3)
second = DistEvalHook(listed, save_best="matches", rule="greater")
runner = make_runner(
    first, second, TextLoggerHook(interval=2), length=1, work_dir=sys.argv[1],
)
net = runner.model
for group in runner.optimizer.param_groups:
    group["lr"] = 0.0  # the weights stay those the test computes with
runner.run([loader(12, 3)], [("train", 1)])
print(json.dumps(runner.meta["hook_msgs"]))
close_dist()
"""


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """(work_dir, what each rank printed) of one run of SCRIPT."""
    work_dir = tmp_path_factory.mktemp("two")
    processes = zygote.start_ranks(["-c", SCRIPT, work_dir])
    said = [process.communicate(timeout=120) for process in processes]
    for process, (_, stderr) in zip_strict(processes, said):
        assert process.returncode == 0, stderr
    return work_dir, [json.loads(stdout.splitlines()[-1]) for stdout, _ in said]


def found(work_dir):
    (path,) = work_dir.glob("*.log.json")  # rank 0 alone wrote
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_each_sample_is_evaluated_once_and_in_order(two_ranks):
    (val,) = (record for record in found(two_ranks[0]) if record["mode"] == "val")
    x, y = samples(13).tensors
    scores = model()(x)
    loss = torch.nn.functional.cross_entropy(scores, y).item()
    assert val["loss"] == pytest.approx(loss, abs=1e-5)
    accuracy = (scores.argmax(1) == y).float().mean().item()
    assert val["accuracy"] == pytest.approx(accuracy, abs=1e-5)
    assert val["matches"] == 13


def test_all_ranks_know_the_best_checkpoint(two_ranks):
    work_dir, (first, second) = two_ranks
    assert first == second
    assert first["best_score"] == 13
    assert (work_dir / "checkpoints" / "best_matches_epoch_1").is_dir()
