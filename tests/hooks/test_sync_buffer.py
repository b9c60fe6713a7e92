"""Buffers are averaged over real processes, at the end of an epoch."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import nn

from devrun.hooks.sync_buffer import SyncBuffersHook
from tests.hooks.loop import Loop


def _train(rank: int, port: int, out: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    means = {}
    for distributed in (True, False):
        model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
        loop = Loop(SyncBuffersHook(distributed), max_epochs=1, length=2, model=model)
        loop.data_loader.data = [batch + rank for batch in loop.data_loader.data]
        loop.run()
        means[distributed] = model[0].running_mean.clone()
    torch.save(means, Path(out) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_have_the_mean_of_their_buffers(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_train, args=(port, str(tmp_path)), nprocs=2)
    found: list[dict[bool, Any]] = [torch.load(tmp_path / f"{r}.pt") for r in (0, 1)]
    alone = [means[False] for means in found]
    together = [means[True] for means in found]
    assert not torch.allclose(*alone)
    assert torch.equal(*together)
    assert torch.allclose(together[0], (alone[0] + alone[1]) / 2)


def test_a_single_process_keeps_its_buffers() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    loop = Loop(SyncBuffersHook(), max_epochs=1, model=model).run()
    kept = model[0].running_mean.clone()
    loop.table.call("after_train_epoch", loop)
    assert torch.equal(model[0].running_mean, kept)
