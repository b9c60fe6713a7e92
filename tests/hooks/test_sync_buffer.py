"""Buffers are averaged over real processes, at the end of an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from devrun.hooks.sync_buffer import SyncBuffersHook
from tests.support import zygote
from tests.support.runs import TracedRun

SCRIPT = """
import sys, torch
from devrun.dist import close_dist, get_dist_info, init_dist
from devrun.hooks.sync_buffer import SyncBuffersHook
from tests.support.runs import TracedRun

init_dist("pytorch", "gloo", timeout=60)
rank, _ = get_dist_info()
means = {}
for distributed in (True, False):
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    run = TracedRun(SyncBuffersHook(distributed), max_epochs=1, model=model)
    run.run()  # each rank has half of the samples
    means[distributed] = model[0].running_mean.clone()
torch.save(means, f"{rank}.pt")
close_dist()
"""


def test_two_processes_have_the_mean_of_their_buffers(tmp_path: Path) -> None:
    ranks = zygote.start_ranks(["-c", SCRIPT], cwd=tmp_path)
    said = [rank.communicate(60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    found: list[dict[bool, Any]] = [torch.load(tmp_path / f"{r}.pt") for r in (0, 1)]
    alone = [means[False] for means in found]
    together = [means[True] for means in found]
    assert not torch.allclose(*alone)
    assert torch.equal(*together)
    assert torch.allclose(together[0], (alone[0] + alone[1]) / 2)


def test_a_single_process_keeps_its_buffers() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    run = TracedRun(SyncBuffersHook(), max_epochs=1, model=model).run()
    kept = model[0].running_mean.clone()
    run.runner.call_hook("after_train_epoch")
    assert torch.equal(model[0].running_mean, kept)
