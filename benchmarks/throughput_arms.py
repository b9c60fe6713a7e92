"""An arm of `benchmarks/throughput.py`: its loop, and the process that it lives in."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import loops
import torch
from loops import ChannelsLast, Job
from throughput_cases import CASES, Case
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from devrun.devices.resolve import resolve_device
from devrun.models.blocks import blocks_of

ENDLESS = 1_000_000
"""Iterations that each arm believes it will do; its process ends before."""
SETTLE = 5
"""Updates before the first turn: compilation, and caches that fill."""
WARM = 2
"""Updates of a turn that are not timed."""


@dataclass(frozen=True)
class Arm:
    """A loop, and whether it is asked to be fast."""

    loop: Callable[[Job, Any], None]
    fast: bool = True
    package: str = "torch"
    needs: str = "torch"
    """Another package that it cannot do without."""
    form: Callable[[Tensor, Tensor], Any] = loops.pair
    compiles: bool = False
    """By a setting of its own."""
    bf16: bool = True
    fused: bool = True


ARMS = {
    "tuned": Arm(loops.raw),
    "plain": Arm(loops.raw, fast=False),
    "tuned, fp32": Arm(loops.raw, bf16=False),
    "devrun fast": Arm(loops.devrun, package="devrun"),
    "devrun plain": Arm(loops.devrun, fast=False, package="devrun"),
    "lightning": Arm(loops.lightning, package="lightning", fused=False),
    "accelerate": Arm(loops.accelerate, package="accelerate", compiles=True),
    "trainer": Arm(
        loops.hugging_face,
        package="transformers",
        needs="accelerate",
        form=loops.named,
        compiles=True,
    ),
}


@dataclass(frozen=True)
class Setting:
    """What all arms of a run share."""

    size: str
    device: str
    updates: int
    threads: int
    cold: bool

    def synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()

    def now(self) -> float:
        """Seconds, of the processor on a CPU, where other programs may run."""
        self.synchronize()
        return time.process_time() if self.device == "cpu" else time.perf_counter()

    def peak(self) -> float:
        """MiB, since the process began."""
        if self.device != "cpu":
            return torch.cuda.max_memory_allocated() / 2**20
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Turns(IterableDataset[Any]):
    """Endless batches, handed out in turns that the other end of a pipe asks for.

    Timed is from the moment when the first batch of a turn is asked for until the
    batch after its last one is. A loop that asks ahead does so each time.
    """

    def __init__(self, batches: list[Any], setting: Setting, pipe: Connection) -> None:
        self.batches, self.setting, self.pipe = batches, setting, pipe
        self.began = self.first = 0.0

    def __len__(self) -> int:
        return ENDLESS

    def update_done(self, *_: Any) -> None:
        """Notes how long the first took."""
        if not self.first:
            self.setting.synchronize()
            self.first = time.perf_counter() - self.began

    def __iter__(self) -> Iterator[Any]:
        endless = itertools.cycle(self.batches)
        self.began = time.perf_counter()
        yield from itertools.islice(endless, SETTLE)
        self.answer({"first": self.first})
        while True:
            yield from itertools.islice(endless, WARM)
            start = self.setting.now()
            yield from itertools.islice(endless, self.setting.updates)
            seconds = self.setting.now() - start
            self.answer({"seconds": seconds, "peak": self.setting.peak()})

    def answer(self, found: dict[str, float]) -> None:
        """Say what was found, and wait for the next turn or the end."""
        if self.setting.device != "cpu":
            torch.cuda.empty_cache()
        self.pipe.send(found)
        if not self.pipe.recv():
            os._exit(0)  # no loop has another way out that is as short


def run_arm(
    case_name: str, arm_name: str, setting: Setting, work: str, pipe: Connection
) -> None:
    """The process of an arm: from the first turn until it is told to end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    tempfile.tempdir = work
    warnings.simplefilter("ignore")
    torch.set_num_threads(setting.threads)
    try:
        job = job_of(CASES[setting.size][case_name], ARMS[arm_name], setting, pipe)
        pipe.send({})
        pipe.recv()
        with open(os.devnull, "w", encoding="utf-8") as log:
            ARMS[arm_name].loop(job, log)
        pipe.send({"failed": "left its loop"})
    except BaseException as error:  # noqa: BLE001 - told in the table, other arms go on
        first_line = (str(error).strip() or "no message").splitlines()[0]
        pipe.send({"failed": f"{type(error).__name__}: {first_line}"[:160]})


def job_of(case: Case, arm: Arm, setting: Setting, pipe: Connection) -> Job:
    """What the arm trains, and how, on batches that wait for their turn."""
    by_hand = arm.fast and arm.package != "devrun"
    cuda = setting.device == "cuda"
    batches = [arm.form(x, y) for x, y in case.batches(setting.device)]
    turns = Turns(batches, setting, pipe)

    def model() -> nn.Module:
        torch.manual_seed(0)
        net = case.model()
        if by_hand and case.is_cnn:
            net = ChannelsLast(net)
        if by_hand and cuda and not arm.compiles:
            for _, block in blocks_of(net) or [("", net)]:
                block.compile()
        return net

    def optimizer(net: nn.Module) -> torch.optim.Optimizer:
        more: dict[str, Any] = {"fused": True} if by_hand and arm.fused else {}
        made: torch.optim.Optimizer
        if case.is_cnn:
            made = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, **more)
        else:
            made = torch.optim.AdamW(net.parameters(), lr=1e-4, **more)
        made.register_step_post_hook(turns.update_done)
        return made

    return Job(
        model,
        optimizer,
        turns,
        case.criterion,
        setting.device,
        bf16=by_hand and arm.bf16 and computes_in_bf16(setting.device),
        compiled=by_hand and cuda,
        tf32=by_hand and cuda,
        options={"performance": "fast"} if arm.fast and not by_hand else {},
    )


def computes_in_bf16(device: str) -> bool:
    """By instructions of the processor, or units of the GPU."""
    return "bf16" in resolve_device(device).list_devices()[0].dtypes
