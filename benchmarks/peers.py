"""What an iteration costs in this runner and in those that people know, on the CPU.

Each trains the same tiny model on the same batches with the same things switched on:
SGD with momentum, a cosine schedule each iteration, clipping by norm, and the mean loss
read and logged every 50 iterations. The batches exist beforehand, so that nearly all
that is timed is the loop itself. A plain loop that does the same is run before and
after each of them in the same process; what counts is the ratio of the two, by
processor time, which other programs on the machine disturb less.

    python benchmarks/peers.py [--rounds 5] [--steps 2000] [--only Ignite Lightning]

Only what can be imported takes part: `pip install pytorch-ignite lightning accelerate
transformers torchtnt mmengine` brings the rest (and MMCV 1.7, where it can be built).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import itertools
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from loops import (
    LOG,
    MAX_NORM,
    MIN_RATIO,
    Job,
    WithLoss,
    accelerate,
    devrun,
    hugging_face,
    lightning,
    named,
    pair,
    raw,
    register_hooks,
)
from torch import Tensor, nn
from torch.utils.data import IterableDataset

LR = 0.01
_NUMBERS = itertools.count()
WARMUP = 200
"""Iterations at the start of a run that are not timed."""


class Batches(IterableDataset[Any]):
    """Prebuilt batches, so many in all, and the time that their use took.

    The clock runs from the moment when the first batch after the warm-up is asked for
    until the last of all is, which is not counted: some never ask for one more.
    """

    def __init__(self, steps: int, form: Callable[[Tensor, Tensor], Any]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.steps = steps
        self.seconds = 0.0
        self.batches = [
            form(
                torch.randn(8, 16, generator=generator),
                torch.randint(0, 10, (8,), generator=generator),
            )
            for _ in range(LOG)
        ]

    def __len__(self) -> int:
        return WARMUP + self.steps + 1

    def __iter__(self) -> Iterator[Any]:
        endless = itertools.cycle(self.batches)
        yield from itertools.islice(endless, WARMUP)
        start = time.process_time()
        yield from itertools.islice(endless, self.steps)
        self.seconds = time.process_time() - start
        yield next(endless)


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10))


def trained(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)


def ignite(job: Job, log: Any) -> None:
    from ignite.engine import Engine, Events
    from ignite.handlers import LRScheduler
    from ignite.metrics import RunningAverage

    model = job.model()
    optimizer = job.optimizer(model)
    params, criterion = list(model.parameters()), job.criterion

    def update(engine: Any, batch: Any) -> float:
        model.train()
        optimizer.zero_grad()
        x, y = batch
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(params, MAX_NORM)
        optimizer.step()
        value: float = loss.item()
        return value

    trainer = Engine(update)
    RunningAverage(output_transform=float).attach(trainer, "loss")
    trainer.add_event_handler(
        Events.ITERATION_STARTED, LRScheduler(job.schedule(optimizer))
    )

    @trainer.on(Events.ITERATION_COMPLETED(every=LOG))
    def write(engine: Any) -> None:
        log.write(f"{engine.state.iteration} {engine.state.metrics['loss']:.4f}\n")

    trainer.run(job.loader(), max_epochs=1, epoch_length=job.steps)


def fabric(job: Job, log: Any) -> None:
    from lightning.fabric import Fabric

    lite = Fabric(accelerator="cpu", devices=1)
    bare, criterion = job.model(), job.criterion
    model, optimizer = lite.setup(bare, job.optimizer(bare))
    loader: Any = lite.setup_dataloaders(job.loader())
    rates, losses = job.schedule(optimizer), []
    model.train()
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        lite.backward(loss)
        lite.clip_gradients(model, optimizer, max_norm=MAX_NORM)
        optimizer.step()
        rates.step()
        losses.append(loss.detach())
        if len(losses) == LOG:
            log.write(f"{step} loss {torch.stack(losses).mean().item():.4f}\n")
            losses.clear()


def torchtnt(job: Job, log: Any) -> None:
    from torchtnt.framework.auto_unit import AutoUnit
    from torchtnt.framework.train import train

    losses: list[Tensor] = []

    class Unit(AutoUnit[Any]):
        def compute_loss(self, state: Any, data: Any) -> tuple[Tensor, Any]:
            x, y = data
            out = self.module(x)
            return nn.functional.cross_entropy(out, y), out

        def configure_optimizers_and_lr_scheduler(self, module: nn.Module) -> Any:
            optimizer = job.optimizer(module)
            return optimizer, job.schedule(optimizer)

        def on_train_step_end(
            self, state: Any, data: Any, step: int, results: Any
        ) -> None:
            losses.append(results.loss.detach())
            if len(losses) == LOG:
                log.write(f"loss {torch.stack(losses).mean().item():.4f}\n")
                losses.clear()

    unit = Unit(
        module=job.model(),
        device=torch.device("cpu"),
        clip_grad_norm=MAX_NORM,
        step_lr_interval="step",
    )
    train(unit, job.loader(), max_epochs=1)


def mmengine(job: Job, log: Any) -> None:
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    class Model(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.inner = WithLoss(job.model(), job.criterion)

        def forward(self, x: Tensor, labels: Tensor, mode: str = "loss") -> Any:
            return self.inner(x, labels)

    with tempfile.TemporaryDirectory() as folder:
        model = Model()
        Runner(
            model,
            folder,
            train_dataloader=job.loader(),
            train_cfg={"by_epoch": False, "max_iters": job.steps},
            optim_wrapper={
                "optimizer": job.optimizer(model),
                "clip_grad": {"max_norm": MAX_NORM},
            },
            param_scheduler=[
                {
                    "type": "CosineAnnealingLR",
                    "by_epoch": False,
                    "T_max": job.steps,
                    "eta_min": LR * MIN_RATIO,
                }
            ],
            default_hooks={
                "logger": {"type": "LoggerHook", "interval": LOG},
                "sampler_seed": None,  # there is no sampler
                "checkpoint": None,
            },
            log_level="ERROR",
            experiment_name=f"run {next(_NUMBERS)}",
        ).train()


def mmcv(job: Job, log: Any) -> None:
    from mmcv.runner import IterBasedRunner

    class Model(WithLoss):
        def train_step(self, data: Any, optimizer: Any) -> dict[str, Any]:
            loss = self(**data)["loss"]
            return {"loss": loss, "log_vars": {"loss": loss.item()}, "num_samples": 8}

    model = Model(job.model(), job.criterion)
    logger = logging.getLogger("mmcv-silent")
    logger.addHandler(logging.StreamHandler(log))
    logger.propagate = False
    with tempfile.TemporaryDirectory() as folder:
        runner = IterBasedRunner(
            model,
            optimizer=job.optimizer(model),
            work_dir=folder,
            logger=logger,
            max_iters=job.steps,
            meta={},
        )
        register_hooks(runner)
        runner.run([job.loader()], [("train", 1)])


@dataclass
class Peer:
    """One of them: the package that has its version, the loop, what a batch is, and
    another package that it cannot do without."""

    package: str
    train: Callable[[Job, Any], None]
    form: Callable[[Tensor, Tensor], Any] = pair
    needs: str = "torch"
    microseconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def version(self) -> str | None:
        """None where it is not installed."""
        try:
            importlib.metadata.version(self.needs)
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


PEERS = {
    "devrun": Peer("devrun", devrun),
    "Ignite": Peer("pytorch-ignite", ignite),
    "MMCV": Peer("mmcv", mmcv, named),
    "Fabric": Peer("lightning", fabric),
    "MMEngine": Peer("mmengine", mmengine, named),
    "Accelerate": Peer("accelerate", accelerate),
    "Hugging Face Trainer": Peer("transformers", hugging_face, named, "accelerate"),
    "TorchTNT": Peer("torchtnt", torchtnt),
    "Lightning": Peer("lightning", lightning),
}


def timed(peer: Peer, steps: int, log: Any) -> float:
    """Processor time of an iteration, in microseconds."""
    batches = Batches(steps, peer.form)
    gc.collect()
    peer.train(Job(tiny, trained, batches), log)
    if not batches.seconds:
        raise RuntimeError(f"{peer.package} left the loop before its end")
    return batches.seconds / steps * 1e6


def measure(peers: dict[str, Peer], rounds: int, steps: int) -> None:
    """Each peer in turn, another one first in each round, the plain loop around it."""
    plain = Peer("torch", raw)
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stderr(nowhere),
        contextlib.redirect_stdout(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for index in range(rounds):
            names = list(peers)
            shift = index % len(names)
            for name in names[shift:] + names[:shift]:
                before = timed(plain, steps, nowhere)
                found = timed(peers[name], steps, nowhere)
                after = timed(plain, steps, nowhere)
                peers[name].microseconds.append(found)
                peers[name].ratios.append(found / ((before + after) / 2))


def table(peers: dict[str, Peer]) -> list[str]:
    """As Markdown, the cheapest first."""
    rows = ["| | version | us an iteration | of the plain loop |", "|---|---|---|---|"]
    for name, peer in sorted(
        peers.items(), key=lambda item: statistics.median(item[1].ratios)
    ):
        rows.append(
            f"| {name} | {peer.version} | {statistics.median(peer.microseconds):.0f} | "
            f"{statistics.median(peer.ratios):.2f} "
            f"({min(peer.ratios):.2f} to {max(peer.ratios):.2f}) |"
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--only", nargs="*", choices=PEERS, default=list(PEERS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.NOTSET)
    chosen = {name: peer for name, peer in PEERS.items() if name in args.only}
    absent = [name for name, peer in chosen.items() if peer.version is None]
    peers = {name: peer for name, peer in chosen.items() if name not in absent}
    sys.stdout.write(
        f"torch {torch.__version__}, Python {sys.version.split()[0]}; "
        f"not installed: {', '.join(absent) or 'none'}\n"
    )
    sys.stdout.flush()
    if not peers:
        parser.error("nothing to compare: install one of those")
    measure(peers, args.rounds, args.steps)
    sys.stdout.write("\n".join(table(peers)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
