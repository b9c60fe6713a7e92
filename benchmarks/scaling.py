"""What several processes cost: devrun against raw scripts, predicted against measured.

Two parts, each with gloo processes on this machine:

`--part raw`: DDP and FSDP2 of one model, as devrun trains it and as one would write it
by hand, in turns in the same processes. Both clip, follow a cosine and log a line every
turn. A pair of turns gives one ratio; the median of the ratios is what counts.

`--part predicted`: the time of an update by `devrun.rehearsal.scaling` beside the one
that is measured, on links that are slowed on purpose: a network namespace for each
process, joined by a bridge, with `tc`'s token bucket filter (root on Linux only). The
link is fitted to all-reduces of four sizes; the computation is that of as many
processes beside each other, without exchanges; all else is predicted.

    python benchmarks/scaling.py [--part raw|predicted] [--world 1 2 4] [--pairs 12]
                                 [--rate 50 100 200]
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
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from devrun.hooks.base import Hook, Priority
from devrun.models.gpt import GPT
from devrun.rehearsal.scaling import Fabric, Part, Weight, Work, fitted, predict
from devrun.runners import IterBasedRunner

LR, MAX_NORM, TURN = 1e-3, 1.0, 10
SIZES = (1 << 14, 1 << 18, 1 << 20, 1 << 22)
"""Bytes of the all-reduces that a link is fitted to."""
KINDS = ("ddp", "fsdp")
BOX = "devrunbench"


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


def wrapped(model: GPT, kind: str, world: int, *, alone: bool = False) -> nn.Module:
    """As one would write it by hand; `alone`: with nobody to exchange with."""
    if world == 1 or (alone and kind == "ddp"):
        return model
    if kind == "ddp":
        return DistributedDataParallel(model)
    sizes = (world, 1) if alone else (1, world)
    names = ("others", "shard")
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)["shard"]
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
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


def raw_part(rank: int, world: int, pairs: int) -> dict[str, Any]:
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


def timed(run: Callable[[], Any], times: int) -> float:
    """The median seconds; all ranks begin together."""
    taken = []
    for _ in range(times):
        dist.barrier()
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def predicted_part(rank: int, world: int, times: int) -> dict[str, Any]:
    """Milliseconds of an update: computed alone, predicted and measured, by kind."""
    exchanges = [
        (float(size), timed(partial(dist.all_reduce, torch.zeros(size // 4)), 6))
        for size in SIZES
    ]
    link = fitted(exchanges, world)
    found: dict[str, Any] = {
        "latency us": link.latency * 1e6,
        "MB/s": link.bandwidth / 1e6,
    }
    batch = next(iter(DataLoader(Tokens(2, 64), batch_size=2)))
    for kind in KINDS:
        work = work_of(wrapped(model_of(256, 4), kind, world, alone=True), batch, times)
        model = model_of(256, 4)
        fabric = Fabric("gloo", link, overlaps=("ddp",), scatters=2)
        expected = predict(work, fabric, kind, world)
        together = wrapped(model, kind, world)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR)

        def update(net: Any = together, optimizer: Any = optimizer) -> None:
            net(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()

        measured = timed(update, times)
        found[kind] = {
            "computed ms": work.compute * 1e3,
            "predicted ms": expected.seconds * 1e3,
            "measured ms": measured * 1e3,
            "error": 100 * (expected.seconds / measured - 1),
        }
    return found


def work_of(net: nn.Module, batch: Any, times: int) -> Work:
    """What an update takes where nothing is exchanged, beside the other ranks."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=LR)
    losses = []

    def forward() -> None:
        losses.append(net(**batch)["loss"])

    def backward() -> None:
        losses.pop().backward()

    spent: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": []}
    for _ in range(times):
        dist.barrier()
        for name, run in (
            ("forward", forward),
            ("backward", backward),
            ("optimizer", optimizer.step),
        ):
            start = time.perf_counter()
            run()
            spent[name].append(time.perf_counter() - start)
        optimizer.zero_grad()
    seconds = {name: statistics.median(each[1:]) for name, each in spent.items()}
    model = model_of(256, 4)
    blocks = tuple(
        Part(weights_of(block.parameters()), share=0.97 / len(model.h))
        for block in model.h
    )
    inside = {id(p) for block in model.h for p in block.parameters()}
    rest = Part(weights_of(p for p in model.parameters() if id(p) not in inside), 0.03)
    return Work(
        seconds["forward"], seconds["backward"], seconds["optimizer"], blocks, rest
    )


def weights_of(parameters: Any) -> tuple[Weight, ...]:
    return tuple(Weight(p.shape[0], p.nbytes) for p in parameters)


def worker(args: argparse.Namespace) -> None:
    """One rank: rank 0 prints what it found."""
    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    part = raw_part if args.part == "raw" else predicted_part
    if world > 1:
        dist.init_process_group("gloo")
    with contextlib.redirect_stdout(sys.stderr):
        found = part(rank, world, args.pairs)
    if rank == 0:
        print(json.dumps(found), flush=True)
    if world > 1 and dist.is_initialized():
        dist.destroy_process_group()


def started(words: list[str], world: int, around: Callable[[int], list[str]],
            address: str, **more: str) -> Any:  # fmt: skip
    """What rank 0 of so many processes printed."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, __file__, *words, "--worker"]
    place = {"WORLD_SIZE": str(world), "MASTER_ADDR": address, "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [*around(rank), *command],
            env={
                **os.environ,
                **place,
                **more,
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


@contextlib.contextmanager
def slow_links(world: int, rate: int) -> Iterator[Callable[[int], list[str]]]:
    """A namespace for each rank, on a bridge; what each sends goes at Mbit/s `rate`.

    Gives the command that puts a rank into its own.
    """

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    names = [f"{BOX}{rank}" for rank in range(world)]
    hub = f"{BOX}hub"
    try:
        for name in (hub, *names):
            ip("netns", "add", name)
        ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        ip("-n", hub, "link", "set", "bridge", "up")
        for rank, name in enumerate(names):
            ip("link", "add", "gate", "netns", name, "type", "veth",
               "peer", "name", f"port{rank}", "netns", hub)  # fmt: skip
            ip("-n", hub, "link", "set", f"port{rank}", "master", "bridge", "up")
            ip("-n", name, "addr", "add", f"10.77.0.{rank + 1}/24", "dev", "gate")
            for device in ("gate", "lo"):
                ip("-n", name, "link", "set", device, "up")
            limit = f"rate {rate}mbit burst 64kb latency 100ms".split()
            subprocess.run(
                ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "gate",
                 "root", "tbf", *limit],
                check=True,
            )  # fmt: skip
        yield lambda rank: ["ip", "netns", "exec", names[rank]]
    finally:
        for name in (hub, *names):
            subprocess.run(["ip", "netns", "del", name], check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("raw", "predicted"), action="append")
    parser.add_argument("--world", type=int, nargs="+")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--rate", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--worker", action="store_true")
    args = parser.parse_args()
    if args.worker:
        (args.part,) = args.part
        worker(args)
        return
    for part in args.part or ("raw", "predicted"):
        words = ["--part", part, "--pairs", str(args.pairs)]
        for world in args.world or ((1, 2, 4) if part == "raw" else (2, 4)):
            if part == "raw":
                found = started(words, world, lambda _: [], "127.0.0.1")
                for kind, by_clock in found.items():
                    for clock, row in by_clock.items():
                        low, middle, high = row["percent"]
                        print(
                            f"{world} processes, {kind}, {clock}: raw {row['raw']:.1f} "
                            f"ms, devrun {row['devrun']:.1f} ms, {middle:+.1f} % "
                            f"(quartiles {low:+.1f} to {high:+.1f})",
                            flush=True,
                        )
                continue
            for rate in args.rate:
                with slow_links(world, rate) as around:
                    found = started(words, world, around, "10.77.0.1",
                                    GLOO_SOCKET_IFNAME="gate")  # fmt: skip
                link = f"{found['MB/s']:.1f} MB/s, {found['latency us']:.0f} us"
                for kind in KINDS:
                    row = found[kind]
                    print(
                        f"{world} processes, {rate} Mbit/s ({link}), {kind}: computed "
                        f"{row['computed ms']:.0f} ms, predicted "
                        f"{row['predicted ms']:.0f}, measured {row['measured ms']:.0f} "
                        f"({row['error']:+.1f} %)",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
