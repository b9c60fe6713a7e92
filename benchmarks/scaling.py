"""What several processes cost: devrun against raw scripts.

DDP and FSDP2 of one model, in gloo processes on this machine, as devrun trains it and
as one would write it by hand, in turns in the same processes. Both clip, follow a
cosine and log a line every turn. A pair of turns gives one ratio; the median of the
ratios is what counts.

    python benchmarks/scaling.py [--world 1 2 4] [--pairs 12]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from devrun.hooks.base import Hook, Priority
from devrun.models.gpt import GPT
from devrun.runners import IterBasedRunner

LR, MAX_NORM, TURN = 1e-3, 1.0, 10
KINDS = ("ddp", "fsdp")


def clocks() -> tuple[float, float]:
    """Wall clock, and the processor time of this process with its threads."""
    return time.perf_counter(), time.process_time()


class Tokens(Dataset[Any]):
    """Random tokens, `length` of them a sample."""

    def __init__(self, count: int, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(256, (count, length), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def model_of(width: int, depth: int) -> GPT:
    torch.manual_seed(0)
    return GPT(256, 64, depth, 4, width, dropout=0.0)


def wrapped(model: GPT, kind: str, world: int) -> nn.Module:
    """As one would write it by hand."""
    if world == 1:
        return model
    if kind == "ddp":
        return DistributedDataParallel(model)
    for block in model.h:
        fully_shard(block)
    fully_shard(model)
    return model


def raw_turns(
    kind: str, data: Dataset[Any], batch: int, updates: int, rank: int, world: int
) -> Iterator[None]:
    """The loop one would write by hand; stops after each turn."""
    model = wrapped(model_of(128, 4), kind, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    sampler: Any = DistributedSampler(data, world, rank, seed=0)
    loader = DataLoader(data, batch_size=batch, sampler=sampler, drop_last=True)
    losses: list[torch.Tensor] = []
    done = 0
    with open(os.devnull, "w") as log:
        while True:
            sampler.set_epoch(done)
            for sample in loader:
                for group in optimizer.param_groups:
                    group["lr"] = 0.5 * LR * (1 + math.cos(math.pi * done / updates))
                optimizer.zero_grad()
                loss = model(**sample)["loss"]
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                losses.append(loss.detach())
                done += 1
                if done % TURN == 0:
                    mean = torch.stack(losses).mean().item()
                    losses.clear()
                    log.write(f"{done}/{updates} loss {mean:.4f}\n")
                    yield


class InTurns(Hook):
    """After each turn of devrun's, one of the raw loop."""

    priority = Priority.LOWEST

    def __init__(self, other: Iterator[None]) -> None:
        self.other, self.start = other, clocks()
        self.raw: list[tuple[float, ...]] = []
        self.ours: list[tuple[float, ...]] = []

    def after_train_iter(self, runner: Any) -> None:
        if (runner.iter + 1) % TURN:
            return
        now = clocks()
        self.ours.append(since(self.start, now))
        next(self.other)
        self.start = clocks()
        self.raw.append(since(now, self.start))


def since(start: tuple[float, ...], end: tuple[float, ...]) -> tuple[float, ...]:
    """Milliseconds of an update, by each clock."""
    return tuple((b - a) / TURN * 1e3 for a, b in zip(start, end, strict=True))


def measured(rank: int, world: int, pairs: int) -> dict[str, Any]:
    """Milliseconds of an update, and the ratio of each pair of turns, by kind."""
    found = {}
    batch = 8
    updates = (pairs + 2) * TURN
    data = Tokens(world * batch * TURN, 64)
    for kind in KINDS[: 1 if world == 1 else 2]:
        model = model_of(128, 4)
        with tempfile.TemporaryDirectory() as folder:
            runner = IterBasedRunner(
                model,
                optimizer=torch.optim.AdamW(model.parameters(), lr=LR),
                work_dir=folder,
                device="cpu",
                parallel={"type": kind} if world > 1 else None,
                max_iters=updates,
                seed=0,
            )
            runner.register_training_hooks(
                {"policy": "CosineAnnealing", "by_epoch": False, "min_lr": 0.0},
                {"grad_clip": {"max_norm": MAX_NORM}},
                None,
                {
                    "interval": TURN,
                    "hooks": [{"type": "TextLoggerHook", "by_epoch": False}],
                },
            )
            turns = InTurns(raw_turns(kind, data, batch, updates, rank, world))
            runner.register_hook(turns)
            loader = DataLoader(data, batch_size=batch, shuffle=True, drop_last=True)
            runner.run([loader], [("train", 1)])
        raw, ours = turns.raw[2:], turns.ours[2:]  # the first two warm up
        found[kind] = {
            name: {
                "raw": statistics.median(a[clock] for a in raw),
                "devrun": statistics.median(b[clock] for b in ours),
                "percent": statistics.quantiles(
                    (100 * (b[clock] / a[clock] - 1)
                     for a, b in zip(raw, ours, strict=True)), n=4
                ),
            }
            for clock, name in enumerate(("wall", "processor"))
        }  # fmt: skip
    return found


def worker(args: argparse.Namespace) -> None:
    """One rank: rank 0 prints what it found."""
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    with contextlib.redirect_stdout(sys.stderr):
        found = measured(rank, world, args.pairs)
    if rank == 0:
        print(json.dumps(found), flush=True)
    if world > 1 and dist.is_initialized():
        dist.destroy_process_group()


def started(world: int, pairs: int) -> Any:
    """What rank 0 of so many processes printed."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, __file__, "--pairs", str(pairs), "--worker"]
    place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                **place,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if rank else None,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        out, _ = processes[0].communicate(timeout=300)
        for process in processes:
            process.wait(60)
    finally:
        for process in processes:
            process.kill()
    return json.loads(out.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--worker", action="store_true")
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    for world in args.world:
        for kind, by_clock in started(world, args.pairs).items():
            for clock, row in by_clock.items():
                low, middle, high = row["percent"]
                print(
                    f"{world} processes, {kind}, {clock}: raw {row['raw']:.1f} "
                    f"ms, devrun {row['devrun']:.1f} ms, {middle:+.1f} % "
                    f"(quartiles {low:+.1f} to {high:+.1f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
