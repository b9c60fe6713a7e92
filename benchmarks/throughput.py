"""Items a second of whole updates: by hand, tuned by hand, devrun, and three peers.

All arms of a case train the same model on the same batches, which lie on the device
beforehand, with the same optimizer, cosine schedule, clipping by norm and logged mean
loss. Each arm is a process of its own, so that no setting, compiler state or memory of
one meets another. It lives through the whole case: its data iterator waits until it is
its turn, so that one arm runs at a time. A turn is two updates to warm up and then the
timed ones, between two synchronisations; all arms have one turn a round, another arm
first in each round, and ratios are those of one round. Between its turns an arm gives
the memory that it only keeps back to the device.

    python benchmarks/throughput.py --device cuda [--cases resnet50 gpt2] [--arms ...]
    python benchmarks/throughput.py --size cpu

The first update is timed apart, with everything compiled in it: compilers find on disk
what earlier arms left there, unless `--cold` gives each arm a cache of its own. Arms
named `tuned` and those of the peers have bf16 autocast where the device computes in it,
a fused optimizer, channels-last for the CNNs, and on CUDA TF32 and compilation: of the
blocks, in the peer's own way where it has one. Lightning has no fused optimizer: with
autocast it refuses to clip for one. On a CPU bf16 may be slower, so `tuned, fp32` is
there too, and the better of both is what a hand would keep. Peak memory is what the arm's tensors
took at most on CUDA, and what its process had resident on a CPU, with all libraries.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import loops
import torch
from loops import Job
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from devrun.devices.resolve import resolve_device
from devrun.models import GPT, ResNet, VisionTransformer
from devrun.models.blocks import blocks_of
from devrun.rehearsal.peaks import load

ENDLESS = 1_000_000
"""Iterations that each arm believes it will do; its process ends before."""
TRIAL = 50
"""Updates after which devrun's `fast` has decided what it measures on a CPU."""
WARM = 2
"""Updates of a turn that are not timed."""


class Logits(nn.Module):
    """A language model's logits alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(input_ids=x)["logits"]
        return out


class TokenLoss(nn.Module):
    """Of logits (N, T, classes) at targets (N, T)."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class ChannelsLast(nn.Module):
    """`net`, its weights and its images in that layout."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x.to(memory_format=torch.channels_last))
        return out


def timm_model(classes: int) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model("convnext_tiny", num_classes=classes)
    return model


def transformers_model(**sizes: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return Logits(LlamaForCausalLM(LlamaConfig(use_cache=False, **sizes)))


@dataclass(frozen=True)
class Case:
    """A model, the shape of one sample, and how many of them are a batch."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    classes: int = 1000
    is_cnn: bool = False
    """Which is trained by SGD, others by AdamW, and tuned in channels-last."""
    package: str = "torch"
    """That must be there."""

    @property
    def is_text(self) -> bool:
        return len(self.shape) == 1

    @property
    def items(self) -> int:
        """Images or tokens of a batch."""
        return self.batch * (self.shape[0] if self.is_text else 1)

    @property
    def criterion(self) -> nn.Module:
        return TokenLoss() if self.is_text else nn.CrossEntropyLoss()

    def batches(self, device: str) -> list[tuple[Tensor, Tensor]]:
        """Two, on the device."""
        generator = torch.Generator().manual_seed(0)
        size = (self.batch, *self.shape)

        def classes(*shape: int) -> Tensor:
            return torch.randint(self.classes, shape, generator=generator).to(device)

        if self.is_text:
            return [(classes(*size), classes(*size)) for _ in range(2)]
        return [
            (torch.randn(size, generator=generator).to(device), classes(self.batch))
            for _ in range(2)
        ]

    def flops(self) -> int:
        """Of an update of one batch: matrix products and convolutions, both ways."""
        from torch.utils.flop_counter import FlopCounterMode

        with torch.device("meta"):
            model = self.model()
            size = (1, *self.shape)
            x = torch.randint(2, size) if self.is_text else torch.randn(size)
        with FlopCounterMode(display=False) as counter:
            model(x).sum().backward()
        return int(counter.get_total_flops()) * self.batch


LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
}
SMALL_LLAMA = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
CASES: dict[str, dict[str, Case]] = {
    "gpu": {
        "resnet50": Case(lambda: ResNet(50), (3, 224, 224), 256, is_cnn=True),
        "vit": Case(lambda: VisionTransformer(), (3, 224, 224), 544),
        "gpt2": Case(lambda: Logits(GPT(dropout=0.0)), (1024,), 32, 50257),
        "resnet18": Case(
            lambda: ResNet(18, 10, stem="cifar"), (3, 32, 32), 128, 10, is_cnn=True
        ),
        "transformers": Case(
            lambda: transformers_model(**LLAMA), (1024,), 16, 32000,
            package="transformers",
        ),
        "timm": Case(
            lambda: timm_model(1000), (3, 224, 224), 128, is_cnn=True, package="timm"
        ),
    },
    "cpu": {
        "resnet50": Case(lambda: ResNet(50, 10), (3, 32, 32), 8, 10, True),
        "vit": Case(
            lambda: VisionTransformer(32, 4, 64, 4, 4, num_classes=10),
            (3, 32, 32), 16, 10,
        ),
        "gpt2": Case(
            lambda: Logits(GPT(256, 128, 4, 4, 128, 0.0)), (128,), 8, 256
        ),
        "resnet18": Case(
            lambda: ResNet(18, num_classes=10, stem="cifar", base_channels=16),
            (3, 32, 32), 8, 10, True,
        ),
        "transformers": Case(
            lambda: transformers_model(**SMALL_LLAMA), (64,), 8, 512,
            package="transformers",
        ),
        "timm": Case(lambda: timm_model(10), (3, 32, 32), 8, 10, True, "timm"),
    },
}  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """A loop, and whether it is asked to be fast."""

    loop: Callable[[Job, Any], None]
    fast: bool = True
    package: str = "torch"
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
        loops.hugging_face, package="transformers", form=loops.named, compiles=True
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

    def __init__(
        self, batches: list[Any], setting: Setting, pipe: Connection, settle: int
    ) -> None:
        self.batches, self.setting, self.pipe = batches, setting, pipe
        self.settle = settle
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
        yield from itertools.islice(endless, self.settle)
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
    measures = arm.fast and not by_hand and not cuda
    turns = Turns(
        [arm.form(x, y) for x, y in case.batches(setting.device)],
        setting,
        pipe,
        settle=TRIAL if measures else 5,
    )

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
        more: dict[str, Any] = {"fused": by_hand and arm.fused}
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


def measured_peak(device: str) -> float | None:
    """TFLOP/s of bf16 products, if `devrun devices --bench` has measured the device."""
    peaks = load(resolve_device(device))
    rate = None if peaks is None else peaks.peak("bf16")
    return None if rate is None else rate / 1e3


@dataclass
class Result:
    """Of an arm: seconds of an update in each round, or why there are none."""

    seconds: list[float] = field(default_factory=list)
    first: float = 0.0
    peak: float = 0.0
    failed: str = ""


class Running:
    """An arm's process, seen from outside."""

    def __init__(self, case: str, name: str, setting: Setting, work: str) -> None:
        self.result = Result()
        self.updates = setting.updates
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(
            target=run_arm, args=(case, name, setting, work, other), daemon=True
        )
        before = dict(os.environ)
        if setting.cold:
            folder = os.path.join(work, name.replace(" ", "-"))
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "triton")
        self.process.start()
        os.environ.clear()
        os.environ.update(before)
        other.close()

    def turn(self) -> None:
        """Let it run, until it has something to say."""
        if not self.result.failed:
            self.pipe.send(True)
            self.hear()

    def hear(self) -> None:
        try:
            found = self.pipe.recv()
        except EOFError:
            found = {"failed": "its process ended"}
        self.result.failed = found.get("failed", "")
        self.result.first = found.get("first", self.result.first)
        self.result.peak = found.get("peak", self.result.peak)
        if "seconds" in found:
            self.result.seconds.append(found["seconds"] / self.updates)

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def compare(
    case: str, arms: list[str], setting: Setting, rounds: int, until: float
) -> dict[str, Result]:
    """All arms of a case in turns: so many rounds, or those that end in time."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        running = {name: Running(case, name, setting, work) for name in arms}
        try:
            for arm in running.values():
                arm.hear()
            for arm in running.values():
                arm.turn()  # the first update, and what follows until it is settled
            for number in range(rounds):
                began = time.perf_counter()
                shift = number % len(arms)
                for name in arms[shift:] + arms[:shift]:
                    running[name].turn()
                now = time.perf_counter()
                if now + (now - began) > until:
                    break
        finally:
            for arm in running.values():
                arm.end()
    return {name: arm.result for name, arm in running.items()}


def table(case: Case, results: dict[str, Result], peak: float | None) -> list[str]:
    """As Markdown. `peak`: TFLOP/s of the device, to which MFU refers."""
    kind = "tokens" if case.is_text else "images"
    rows = [
        f"| | {kind}/s | of tuned | of plain | first update | peak memory | MFU |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        if result.failed or not result.seconds:
            rows.append(f"| {name} | {result.failed or 'no turn'} | | | | | |")
            continue
        second = statistics.median(result.seconds)
        mfu = f"{case.flops() / second / peak / 1e12:.1%}" if peak else ""
        rows.append(
            f"| {name} | {case.items / second:.0f} | {of(results, 'tuned', result)} | "
            f"{of(results, 'plain', result)} | {result.first:.2f} s | "
            f"{result.peak:.0f} MiB | {mfu} |"
        )
    return rows


def of(results: dict[str, Result], base: str, result: Result) -> str:
    """Rate as a ratio to that of the arm `base`, median (range) of the rounds."""
    other = results.get(base, Result())
    if result is other or other.failed or not other.seconds:
        return "1" if result is other else ""
    ratios = [
        theirs / mine
        for theirs, mine in zip(other.seconds, result.seconds, strict=False)
    ]
    middle = statistics.median(ratios)
    return f"{middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def versions(packages: set[str]) -> str:
    found = [
        f"{name} {importlib.metadata.version(name)}"
        for name in sorted(packages - {"devrun"})
    ]
    return ", ".join([*found, f"Python {sys.version.split()[0]}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--size", choices=CASES, default="gpu")
    parser.add_argument("--cases", nargs="+", choices=CASES["gpu"])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=5, help="at most")
    parser.add_argument("--updates", type=int, help="of a turn")
    parser.add_argument("--threads", type=int, default=1, help="of a process")
    parser.add_argument("--minutes", type=float, default=9.0, help="all cases together")
    parser.add_argument("--cold", action="store_true", help="a compiler cache an arm")
    parser.add_argument("--peak", type=float, help="TFLOP/s, for MFU")
    args = parser.parse_args()
    device = args.device or ("cpu" if args.size == "cpu" else "cuda")
    updates = args.updates or (5 if device == "cpu" else 20)
    if min(args.rounds, updates, args.threads) < 1:
        parser.error("--rounds, --updates and --threads are at least 1")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA device here: --size cpu takes the CPU")
    os.environ["PYTHONWARNINGS"] = "ignore"  # of what a process killed left behind
    setting = Setting(args.size, device, updates, args.threads, args.cold)
    arms = [name for name in args.arms if is_there(ARMS[name].package)]
    cases = {
        name: case
        for name, case in CASES[args.size].items()
        if name in (args.cases or CASES["gpu"]) and is_there(case.package)
    }
    absent = {*args.arms, *(args.cases or CASES["gpu"])} - {*arms, *cases}
    if not arms or not cases:
        parser.error(f"not installed: {', '.join(sorted(absent))}")
    where = torch.cuda.get_device_name() if device == "cuda" else f"{args.threads} CPU"
    say(f"{where}: {versions({ARMS[name].package for name in arms} | {'torch'})}")
    say(f"not installed: {', '.join(sorted(absent)) or 'none'}")
    end = time.perf_counter() + 60 * args.minutes
    for number, (name, case) in enumerate(cases.items()):
        now = time.perf_counter()
        if now > end:
            say(f"{name}: no time is left")
            continue
        until = now + (end - now) / (len(cases) - number)
        results = compare(name, arms, setting, args.rounds, until)
        rounds = max(len(result.seconds) for result in results.values())
        say(f"\n{name}, batch {case.batch} of {case.shape}, {rounds} rounds\n")
        say("\n".join(table(case, results, args.peak or measured_peak(device))))
    return 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
