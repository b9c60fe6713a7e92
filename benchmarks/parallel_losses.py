"""Losses of each strategy on 1 to 4 processes against one process, as a table.

python benchmarks/parallel_losses.py [--updates 50] [--models gpt vit resnet]
    [--processes 2 3 4] [--strategies ddp fsdp] [--out FILE]

Every row trains the shipped GPT, ViT or ResNet at a tiny size for 50 updates of 36
samples, divided over the processes and micro-batches of the row; its reference is one
process that does the same update. What a batch norm sees are the samples of a
micro-batch, so the ResNet's reference has micro-batches of the same size. Processes
talk over gloo.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from devrun import dist
from devrun.hooks import Hook
from devrun.models import GPT, ResNet, VisionTransformer
from devrun.runners import IterBasedRunner

Case = tuple[str, str, int, str]
"""Model, strategy, micro-batches of an update and precision."""
SAMPLES = 36
"""Of an update, over all processes and micro-batches."""
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"type": "ddp"},
    "fsdp": {"type": "fsdp"},
    "hybrid 2x2": {"type": "fsdp", "mesh": {"replicate": 2, "shard": 2}},
    "tensor 2": {"mesh": {"tensor": 2}},
    "tensor 2 x fsdp 2": {"type": "fsdp", "mesh": {"tensor": 2, "shard": 2}},
}
PROCESSES = {
    "ddp": (2, 3, 4),
    "fsdp": (2, 3, 4),
    "hybrid 2x2": (4,),
    "tensor 2": (2,),
    "tensor 2 x fsdp 2": (4,),
}
LIMITS = {"fp32": 1e-4, "bf16": 2e-2}
"""How far losses may part from those of one process: rounding alone does it, which
AdamW and the steps before make larger."""


class Tokens(Dataset[Any]):
    """Sequences of 16 tokens that follow each other by a rule, with a few unknown."""

    def __init__(self, count: int = 252) -> None:
        generator = torch.Generator().manual_seed(4)
        first = torch.randint(0, 24, (count, 1), generator=generator)
        step = torch.randint(1, 5, (count, 1), generator=generator)
        self.ids = (first + step * torch.arange(16)) % 24
        self.labels = self.ids.clone()
        for index, row in enumerate(self.labels):
            row[16 - index % 6 :] = -100

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


class Losses(Hook):
    """The loss of each update over everything that all processes had in it."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def after_train_iter(self, runner: Any) -> None:
        outputs = runner.outputs
        count = float(outputs.get("num_items", outputs["num_samples"]))
        total = {"loss": (float(outputs["loss"]) * count, count)}
        self.values.append(dist.weighted_means(total)["loss"])


def images(count: int = 252) -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    labels = torch.arange(count) % 4
    pixels = torch.randn(count, 3, 8, 8, generator=generator)
    return TensorDataset(pixels + labels.view(-1, 1, 1, 1) * 0.5, labels)


def built(model: str) -> nn.Module:
    if model == "gpt":
        return GPT(24, 16, n_layer=2, n_head=4, n_embd=16, dropout=0.0)
    if model == "vit":
        net = VisionTransformer(8, 4, 16, 2, 4, num_classes=4)
        nn.init.normal_(net.head.weight, std=0.1)  # at 0 it hides what is before it
        return net
    return ResNet(stage_blocks=(1, 1), base_channels=8, num_classes=4, stem="cifar")


def train(case: Case, updates: int) -> list[float]:
    """Losses of this process's part in a run."""
    model, strategy, accumulate, precision = case
    torch.manual_seed(0)
    net = built(model)
    # a ViT of one process in bf16 parts from itself by 0.04 at the usual rate
    rate = 3e-4 if model == "vit" else 1e-3
    runner = IterBasedRunner(
        net,
        optimizer=torch.optim.AdamW(net.parameters(), lr=rate),
        loss=None if model == "gpt" else nn.CrossEntropyLoss(),
        device="cpu",
        seed=1,
        max_iters=updates,
        parallel=STRATEGIES.get(strategy),
        optimizer_config={
            "cumulative_iters": accumulate,
            "precision": precision,
            "grad_clip": {"max_norm": 1.0},
        },
    )
    losses = Losses()
    runner.register_hook(losses)
    data: Any = Tokens() if model == "gpt" else images()
    size = SAMPLES // accumulate // runner.adapter.data_share[1]
    with closing(runner):
        runner.run([DataLoader(data, size, shuffle=True)], [("train", 1)])
    return losses.values


def started(count: int, cases: list[Case], updates: int) -> dict[Case, list[float]]:
    """The losses of each case, on `count` processes of this program."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = {"OMP_NUM_THREADS": "1"}
    if count > 1:
        place |= {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"}
        place |= {"MASTER_PORT": port}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "losses.json")
        given = ["--one", str(out), json.dumps(cases), "--updates", str(updates)]
        running = [
            subprocess.Popen(
                [sys.executable, __file__, *given],
                env={**os.environ, **place, "RANK": str(r), "LOCAL_RANK": str(r)},
            )
            for r in range(count)
        ]
        statuses = [process.wait() for process in running]
        if any(statuses):
            raise SystemExit(f"failed on {count} processes: statuses {statuses}")
        found = json.loads(out.read_text())
    return dict(zip(cases, found, strict=True))


def cases_on(count: int, models: list[str], strategies: list[str]) -> list[Case]:
    """What is trained on `count` processes."""
    return [
        (model, strategy, accumulate, precision)
        for model in models
        for strategy in strategies
        if count in PROCESSES[strategy] and fits(model, strategy)
        for accumulate in (1, 3)
        for precision in LIMITS
    ]


def fits(model: str, strategy: str) -> bool:
    """A ResNet has no matrices to divide; a ViT is here for what that cannot show."""
    divided = strategy.startswith("tensor")
    return model == "gpt" or divided is (model == "vit")


def rows(
    models: list[str], processes: list[int], strategies: list[str], updates: int
) -> Iterator[list[str]]:
    """Model, strategy, processes, accumulation, precision and how far it is off."""
    planned = {count: cases_on(count, models, strategies) for count in processes}
    pieces = {
        (count, case): case[2] * (count if case[0] == "resnet" else 1)
        for count, cases in planned.items()
        for case in cases
    }
    wanted = {
        (case[0], "none", number, case[3]) for (_, case), number in pieces.items()
    }
    alone = started(1, sorted(wanted), updates)
    for count, cases in planned.items():
        found = started(count, cases, updates)
        for case, losses in found.items():
            model, strategy, accumulate, precision = case
            whole = alone[model, "none", pieces[count, case], precision]
            off = max(abs(a - b) for a, b in zip(losses, whole, strict=True))
            yield [
                *(model, strategy, str(count), str(accumulate), precision),
                *(f"{losses[0]:.4f}", f"{losses[-1]:.4f}", f"{off:.1e}"),
                "yes" if off <= LIMITS[precision] else "NO",
            ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--models", nargs="+", default=["gpt", "vit", "resnet"])
    parser.add_argument("--processes", nargs="+", type=int, default=[2, 3, 4])
    every = list(STRATEGIES)
    parser.add_argument("--strategies", nargs="+", choices=every, default=every)
    parser.add_argument("--out", type=Path, help="append the table here")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        logging.getLogger("devrun").setLevel(logging.ERROR)
        torch.set_num_threads(1)
        dist.init_dist("pytorch" if dist.launched() else "none", "gloo")
        losses = [
            train(case, given.updates) for case in map(tuple, json.loads(given.one[1]))
        ]
        if dist.is_main():
            Path(given.one[0]).write_text(json.dumps(losses))
        dist.close_dist()
        return
    head = "model, strategy, processes, micro-batches, precision, first, last, off, ok"
    lines = [f"| {' | '.join(head.split(', '))} |", "|---" * 9 + "|"]
    print(*lines, sep="\n", flush=True)
    for row in rows(given.models, given.processes, given.strategies, given.updates):
        lines.append(f"| {' | '.join(row)} |")
        print(lines[-1], flush=True)
    if given.out:
        with given.out.open("a") as file:
            file.write("\n".join(lines) + "\n")
    if any(line.endswith("| NO |") for line in lines):
        raise SystemExit("some losses are not those of one process")


if __name__ == "__main__":
    main()
