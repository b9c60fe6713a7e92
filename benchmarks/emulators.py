"""What emulation costs: a training step on each emulator over the same step on the CPU.

One process for each of poptorch and habana_frameworks' two modes, since the latter
changes torch for its whole process, and one for lazy mode's steps from a graph. In it,
two copies of one model train on the same batches, plain and emulated, in turns of some
20 ms, either of them first alternately: a change of the machine's speed meets both, and
each pair of turns gives one ratio.

A step is what a user would write: move the batch, forward, cross entropy, backward, SGD
with momentum; on habana_frameworks with its two step markers. The loss is read once a
turn. On poptorch the whole step is one call, as it is there.

    python benchmarks/emulators.py [hpu-lazy hpu-graph hpu-eager ipu] [--pairs 60]

With `--clock cpu` other programs disturb less.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
Step = Callable[[Batch], Tensor]

CASES = {"toy": 32, "wide": 512}
"""Width of the three hidden layers."""
EMULATORS = Path(__file__).resolve().parent.parent / "devrun" / "emulators"
SETTINGS = {
    "hpu-lazy": {"PT_HPU_LAZY_MODE": "1"},
    "hpu-graph": {"PT_HPU_LAZY_MODE": "1"},
    "hpu-eager": {"PT_HPU_LAZY_MODE": "0"},
    "ipu": {},
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
BATCHES = 8
TURN_SECONDS = 0.02
WARMUP_PAIRS = 3


class Classifier(nn.Module):
    """Three hidden layers; the loss where there are labels, as PopTorch wants it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 10))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = self.loss(self.layers(x), y)
        return loss


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def eager_step(model: nn.Module, device: str, mark: Callable[[], object]) -> Step:
    """A step on `device`, with a step marker after backward and after the update."""
    model.to(device)
    optimizer = sgd(model)

    def step(batch: Batch) -> Tensor:
        x, y = (part.to(device) for part in batch)
        optimizer.zero_grad()
        loss: Tensor = model(x, y)
        loss.backward()
        mark()
        optimizer.step()
        mark()
        return loss

    return step


def habana_step(model: nn.Module) -> Step:
    htcore: Any = importlib.import_module("habana_frameworks.torch.core")
    return eager_step(model, "hpu", htcore.mark_step)


def graph_step(model: nn.Module) -> Step:
    """The same, captured at its first call and replayed: `HPUGraph`."""
    ht: Any = importlib.import_module("habana_frameworks.torch")
    plain = eager_step(model, "hpu", lambda: None)
    recorded: list[Any] = []

    def step(batch: Batch) -> Tensor:
        if not recorded:
            plain(batch)  # makes the optimizer's state
            static = batch[0].to("hpu"), batch[1].to("hpu")
            graph = ht.hpu.HPUGraph()
            with ht.hpu.graph(graph):
                loss = plain(static)
            recorded.append((graph, static, loss))
        graph, static, loss = recorded[0]
        for part, given in zip(static, batch, strict=True):
            part.copy_(given)
        graph.replay()
        found: Tensor = loss
        return found

    return step


def poptorch_step(model: nn.Module) -> Step:
    poptorch: Any = importlib.import_module("poptorch")
    training = poptorch.trainingModel(model, poptorch.Options(), sgd(model))

    def step(batch: Batch) -> Tensor:
        loss: Tensor = training(*batch)
        return loss

    return step


STEPS = {"ipu": poptorch_step, "hpu-graph": graph_step}


def pairs_of_turns(
    plain: Step, emulated: Step, batches: list[Batch], pairs: int, clock: str
) -> list[tuple[float, float]]:
    """Microseconds of a step, plain and emulated, for each pair of turns."""
    read = CLOCKS[clock]

    def turn(step: Step, steps: int) -> float:
        start = read()
        for index in range(steps):
            loss = step(batches[index % len(batches)])
        loss.item()
        return (read() - start) * 1e6 / steps

    turn(plain, BATCHES)
    steps = max(BATCHES, round(TURN_SECONDS * 1e6 / turn(plain, BATCHES)))
    found = []
    for index in range(WARMUP_PAIRS + pairs):
        if index % 2:
            mine = turn(emulated, steps)
            found.append((turn(plain, steps), mine))
        else:
            theirs = turn(plain, steps)
            found.append((theirs, turn(emulated, steps)))
    return found[WARMUP_PAIRS:]


def measure(target: str, args: argparse.Namespace) -> None:
    """Prints a line for each case; runs in a process that emulates `target`."""
    for name, width in CASES.items():
        models = []
        for _ in range(2):
            torch.manual_seed(0)
            models.append(Classifier(width))
        plain = eager_step(models[0], "cpu", lambda: None)
        emulated = STEPS.get(target, habana_step)
        batches = [
            (torch.randn(args.batch, width), torch.randint(0, 10, (args.batch,)))
            for _ in range(BATCHES)
        ]
        pairs = pairs_of_turns(
            plain, emulated(models[1]), batches, args.pairs, args.clock
        )
        label = f"{target:<10} {name}, width {width}"
        sys.stdout.write(line(label, pairs) + "\n")
        sys.stdout.flush()


def line(label: str, pairs: list[tuple[float, float]]) -> str:
    """Median microseconds of both, and the ratio of each pair."""
    plain, emulated = zip(*pairs, strict=True)
    ratios = sorted(b / a for a, b in pairs)
    low, middle, high = statistics.quantiles(ratios, n=4)
    times = [f"{statistics.median(column):9.1f} us" for column in (plain, emulated)]
    return (
        f"{label:<28}{times[0]} {times[1]}   ratio {middle:.2f} (quartiles {low:.2f} "
        f"to {high:.2f}, all {ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(SETTINGS)}; or all")
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = [target for target in args.targets if target not in SETTINGS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose of {', '.join(SETTINGS)}")
    if args.here:
        torch.set_num_threads(args.threads)
        measure(args.targets[0], args)
        return 0
    setting = f"batch {args.batch}, {args.threads} thread, {args.clock} clock"
    sys.stdout.write(f"torch {torch.__version__}, {setting}\n")
    sys.stdout.flush()
    for target in args.targets or SETTINGS:
        env = {k: v for k, v in os.environ.items() if not k.startswith("PT_")}
        env |= {"PYTHONPATH": str(EMULATORS), **SETTINGS[target]}
        options = [f"--{key}={getattr(args, key)}" for key in ("pairs", "batch")]
        options += [f"--threads={args.threads}", f"--clock={args.clock}", "--here"]
        done = subprocess.run([sys.executable, __file__, target, *options], env=env)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
