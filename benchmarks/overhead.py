"""What the runner costs per iteration, beyond a raw PyTorch loop that does the same.

Both loops train in one process, in turns of 50 iterations on the same kind of model
and batches: devrun's data loader runs the turns of the raw loop, before its own and
after it alternately. So a change of the machine's speed meets both, and each pair of
turns gives one difference and one ratio. Their medians are what counts. Each round has
models of its own: where they lie in memory makes some percent of a CNN's time.

The raw loop is equipped as one would write it for speed: the same cosine formula each
iteration, clipping over a parameter list made once, data and iteration time, and every
50 iterations a line with the mean loss, really read, formatted and written. Devrun has
its default hooks (schedule, timer, text logger every 50 iterations to console and JSON
file) and its default checks: each loss and gradient norm is looked at for NaN, and the
norm is logged, which the raw loop does not do.

    python benchmarks/overhead.py [--device cpu] [--rounds 10] [--pairs 80]

`--clock cpu` counts processor time, which other programs on the machine disturb less;
it says nothing of a device's own time. `--lean` leaves out schedule, clipping and log
lines, in both: the least that a loop can do.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

import torch
from torch import nn

from devrun.log.logger import close_logger
from devrun.runners import EpochBasedRunner, IterBasedRunner

LR, MIN_RATIO, MAX_NORM = 0.01, 0.01, 10.0
TURN = 50
"""Iterations of one turn, and between two log lines."""
EPOCH = 10
"""Turns of an epoch."""
WARMUP = 2
"""Turns left out at the start of a round."""
Clock = Callable[[], float]
RUNNERS = {"epoch": EpochBasedRunner, "iter": IterBasedRunner}
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def tiny_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, float]] = {
    # name: (model, input shape, batch size, share of --pairs)
    "tiny MLP": (tiny_mlp, (16,), 8, 1.0),
    "small CNN": (small_cnn, (3, 32, 32), 16, 0.25),
}


@dataclass
class Figures:
    """Microseconds of an iteration in each turn, and between two epochs."""

    raw: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    between_epochs: list[float] = field(default_factory=list)

    def add(self, other: Figures) -> None:
        """Take the figures of a round, less those of its start."""
        self.raw += other.raw[WARMUP:]
        self.ours += other.ours[WARMUP:]
        self.between_epochs += other.between_epochs


class InTurns(torch.utils.data.DataLoader[Any]):
    """Hands out prebuilt batches at no cost, and lets the raw loop have every 2nd turn.

    The clock runs from the moment a turn's first batch is asked for until the batch
    after its last one is: all that a loop does in between is in it.
    """

    def __init__(
        self, batches: list[Any], turns: int, other: Iterator[None], clock: Clock
    ) -> None:
        super().__init__(batches, batch_size=None)  # type: ignore[arg-type]
        self.batches, self.turns = batches, turns
        self.other, self.clock = other, clock
        self.figures = Figures()
        self._epoch_over: float | None = None

    def __len__(self) -> int:
        return self.turns * TURN

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        clock, figures = self.clock, self.figures
        if self._epoch_over is not None:
            figures.between_epochs.append((clock() - self._epoch_over) * 1e6)
        for turn in range(self.turns):
            raw_first = turn % 2 == 0  # in one pair; the other way round in the next
            if raw_first:
                figures.raw.append(self._raw_turn())
            start = clock()
            yield from self.batches
            figures.ours.append((clock() - start) * 1e6 / TURN)
            if not raw_first:
                figures.raw.append(self._raw_turn())
        self._epoch_over = clock()

    def _raw_turn(self) -> float:
        start = self.clock()
        next(self.other)
        return (self.clock() - start) * 1e6 / TURN


def raw_loop(
    model: nn.Module, batches: list[Any], turns: int, log: TextIO
) -> Iterator[None]:
    """The loop one would write by hand; yields after each turn."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    params = list(model.parameters())
    low, steps, step = LR * MIN_RATIO, turns * len(batches), 0
    losses: list[torch.Tensor] = []
    model.train()
    for turn in range(turns):
        data_time = iter_time = 0.0
        last = time.perf_counter()
        for x, y in batches:
            data_time += time.perf_counter() - last
            lr = low + 0.5 * (LR - low) * (1 + math.cos(math.pi * step / steps))
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(params, MAX_NORM)
            optimizer.step()
            losses.append(loss.detach())
            step += 1
            now = time.perf_counter()
            iter_time += now - last
            last = now
        mean = torch.stack(losses).mean().item()
        losses.clear()
        log.write(
            f"[{step}/{steps}] turn {turn}, lr: {lr:.3e}, loss: {mean:.4f}, "
            f"time: {iter_time / TURN:.3f}, data_time: {data_time / TURN:.3f}\n"
        )
        log.flush()
        yield


def lean_loop(model: nn.Module, batches: list[Any], turns: int) -> Iterator[None]:
    """A loop that only steps; yields after each turn."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for _ in range(turns):
        for x, y in batches:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        yield


def devrun_loop(
    model: nn.Module,
    loader: InTurns,
    kind: str,
    limit: dict[str, Any],
    device: str,
    work_dir: str,
    lean: bool,
) -> None:
    """The runner with what it has by default, or only with its logger."""
    runner = RUNNERS[kind](
        model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        work_dir=work_dir,
        device=device,
        **limit,
    )
    schedule = {"policy": "CosineAnnealing", "min_lr_ratio": MIN_RATIO}
    runner.register_training_hooks(
        None if lean else {**schedule, "by_epoch": False},
        None if lean else {"grad_clip": {"max_norm": MAX_NORM}},
        None,
        {
            "interval": EPOCH * TURN if lean else TURN,  # lean: between two epochs
            "hooks": [{"type": "TextLoggerHook", "by_epoch": kind == "epoch"}],
        },
    )
    runner.run([loader], [("train", 1)])
    runner.close()


def measure(
    build: Callable[[], nn.Module],
    batches: list[Any],
    epochs: int,
    kind: str,
    device: str,
    clock: Clock,
    *,
    raw_first: bool,
    lean: bool,
) -> Figures:
    """One round of both loops, on models with the same first weights."""
    if kind == "epoch":
        limit: dict[str, Any] = {"max_epochs": epochs}
    else:
        limit = {"max_iters": epochs * EPOCH * TURN}
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(build().to(device))
    theirs, mine = models if raw_first else reversed(models)
    with (
        tempfile.TemporaryDirectory() as work_dir,
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stderr(nowhere),
    ):
        turns = epochs * EPOCH
        if lean:
            raw = lean_loop(theirs, batches, turns)
        else:
            raw = raw_loop(theirs, batches, turns, nowhere)
        loader = InTurns(batches, EPOCH, raw, clock)
        devrun_loop(mine, loader, kind, limit, device, work_dir, lean)
        close_logger()
    return loader.figures


def batches_of(shape: tuple[int, ...], size: int, device: str) -> list[Any]:
    """The random batches of one turn, on the device."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(size, *shape, generator=generator).to(device),
            torch.randint(0, 10, (size,), generator=generator).to(device),
        )
        for _ in range(TURN)
    ]


def report(name: str, figures: Figures) -> list[str]:
    """One line per figure: both loops, difference, ratio, and the cost of an epoch."""
    raw, ours = figures.raw, figures.ours
    extra = [a - b for a, b in zip(ours, raw, strict=True)]
    ratio = [100 * (a / b - 1) for a, b in zip(ours, raw, strict=True)]
    return [
        f"{name} ({len(raw)} pairs of turns of {TURN} iterations)",
        spread("raw loop", raw, "us"),
        spread("devrun", ours, "us"),
        spread("difference", extra, "us"),
        spread("ratio", ratio, "%"),
        spread("between epochs", figures.between_epochs, "us"),
    ]


def spread(label: str, values: list[float], unit: str) -> str:
    """`label   median (lower to upper quartile; minimum to maximum)`."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (
        f"  {label:<15}{middle:9.2f} {unit:<2}  (quartiles {low:.2f} to {high:.2f}; "
        f"all {min(values):.2f} to {max(values):.2f})"
    )


def clock_of(device: str, name: str) -> Clock:
    """Seconds, read when the device has done all it was asked for."""
    read = CLOCKS[name]
    kind = torch.device(device).type
    if kind == "cpu":
        return read
    module = getattr(torch, kind)

    def synchronized() -> float:
        module.synchronize()
        return read()

    return synchronized


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=80, help="of each round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runner", choices=RUNNERS, default="epoch")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--lean", action="store_true", help="steps and nothing else")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = clock_of(args.device, args.clock)
    setting = f"{args.device}, {args.runner} runner, {args.clock} clock"
    if args.lean:
        setting += ", lean"
    sys.stdout.write(f"torch {torch.__version__}, {setting}\n")
    for name, (build, shape, size, share) in CASES.items():
        batches = batches_of(shape, size, args.device)
        epochs = max(2, math.ceil(args.pairs * share / EPOCH))
        figures = Figures()
        for index in range(args.rounds):
            found = measure(
                build,
                batches,
                epochs,
                args.runner,
                args.device,
                clock,
                raw_first=index % 2 == 0,
                lean=args.lean,
            )
            figures.add(found)
        sys.stdout.write("\n".join(report(name, figures)) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
