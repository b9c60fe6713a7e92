"""How long a checkpoint holds training up, against torch's own ways of saving.

The state is that of a model of 100 million float32 parameters with AdamW: 1.2 GB. In
each round every way saves it to the same disk, beginning with another one each time,
so that a change of the disk's speed meets all of them:

    torch.save   one file, written and synced; the measure of the others
    dcp.save     torch.distributed.checkpoint, which syncs its files
    dcp.async    its `async_save`: until it returns
    devrun       the stage of CheckpointHook in a run, `checkpoint_config: {}`
    async        the same with `checkpoint_config: {async: true}`

What is timed is the time that training stands still. Of the two asynchronous ways the
time until the checkpoint is complete is shown as well; the next way begins after that.
Every way saves twice in a round and the second one counts: memory that is kept for
copies is claimed in the first, whose stall is shown by itself.

Then the resume: the file is in the page cache, the model and its optimizer exist.
Beside it stand the time that the sha256 of the same bytes takes alone, which devrun
compares, and the memory that each way needs beyond the state that is there already.
Then what the data loader costs that can start at any update, in turns of 200 batches
against a plain DataLoader on the same samples, and as a share of a small CNN's step.

    python benchmarks/checkpoint.py [--rounds 8] [--parameters 100e6] [--dir .]
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from devrun.checkpoint import find_latest
from devrun.devices.cpu import CPUAdapter
from devrun.errors import DevrunError
from devrun.hooks import Hook, Priority
from devrun.runners import IterBasedRunner

WIDTH = 2000
"""Features of each layer: four million parameters."""
SAVES = 2
"""Of each way in a round; the last one counts."""
TURN = 200
"""Batches of one turn of the loaders."""
BASE = "torch.save"
ASYNC = "devrun async"
FIRST = "devrun async, first"
Timed = tuple[float, float]
"""Seconds that training stood still, and until all was on the disk."""
clock = time.perf_counter


def build(parameters: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of about so many parameters, with an optimizer that has made a step."""
    layers = max(1, round(parameters / WIDTH**2))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, foreach=False)
    model(torch.randn(1, WIDTH)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


class Bound(Hook):
    """Reads the clock before, or after, the hook that saves."""

    def __init__(self, note: Callable[[], None]) -> None:
        self.note = note

    def after_train_iter(self, runner: Any) -> None:
        self.note()


def with_devrun(
    model: nn.Module, optimizer: Any, root: Path, config: Mapping[str, Any]
) -> list[Timed]:
    """`SAVES` checkpoints of a run, one after every other update.

    A second between them stands for more updates: buffers are made in it.
    """
    updates = 2 * SAVES
    runner = IterBasedRunner(
        model, optimizer=optimizer, loss=nn.MSELoss(), max_iters=updates, device="cpu"
    )
    figures: list[Timed] = []
    began = 0.0

    def before() -> None:
        nonlocal began
        began = clock()

    def after() -> None:
        still = clock() - began
        if runner.iter % 2 == 0:
            time.sleep(1)
            return
        target = root / f"step-{runner.iter + 1:08d}" / "MANIFEST.json"
        while not target.exists():
            time.sleep(0.002)
        figures.append((still, clock() - began))

    runner.register_hook(Bound(before), Priority.LOWEST)
    runner.register_checkpoint_hook(
        {"interval": 2, "by_epoch": False, "out_dir": str(root), **config}
    )
    runner.register_hook(Bound(after), Priority.LOWEST)
    x = torch.zeros(updates, WIDTH)
    runner.run([DataLoader(TensorDataset(x, x))], [("train", 1)])
    runner.close()
    return figures


def with_torch(model: nn.Module, optimizer: Any, root: Path) -> Timed:
    """`torch.save` of both, synced."""
    root.mkdir(parents=True, exist_ok=True)
    start = clock()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with (root / "state.pth").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return clock() - start, clock() - start


def with_dcp(model: nn.Module, optimizer: Any, root: Path, *, wait: bool) -> Timed:
    """`dcp.save`, or `dcp.async_save` where it need not `wait`."""
    start = clock()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if wait:
        dcp.save(state, checkpoint_id=root, no_dist=True)
        return clock() - start, clock() - start
    response: Any = dcp.async_save(state, checkpoint_id=root, no_dist=True)
    still = clock() - start
    getattr(response, "upload_completion", response).result()
    return still, clock() - start


def saving_ways(
    model: nn.Module, optimizer: Any
) -> dict[str, Callable[[Path], list[Timed]]]:
    """Each way as a function that saves `SAVES` times under a directory."""

    def repeated(save: Callable[[Path], Timed]) -> Callable[[Path], list[Timed]]:
        return lambda root: [save(root / str(n)) for n in range(SAVES)]

    return {
        BASE: repeated(lambda root: with_torch(model, optimizer, root)),
        "dcp.save": repeated(lambda root: with_dcp(model, optimizer, root, wait=True)),
        "dcp.async": repeated(
            lambda root: with_dcp(model, optimizer, root, wait=False)
        ),
        "devrun": lambda root: with_devrun(model, optimizer, root, {}),
        ASYNC: lambda root: with_devrun(model, optimizer, root, {"async": True}),
    }


@contextlib.contextmanager
def emptied(place: Path) -> Iterator[Path]:
    """A new directory; its deletion has reached the disk when this is left."""
    root = Path(tempfile.mkdtemp(dir=place, prefix="benchmark-"))
    try:
        yield root
    finally:
        shutil.rmtree(root)
        os.sync()


def time_saving(
    model: nn.Module, optimizer: Any, place: Path, rounds: int
) -> dict[str, list[Timed]]:
    """Way -> its figures, one a round; of `FIRST`, of the first save of a run."""
    ways = saving_ways(model, optimizer)
    figures: dict[str, list[Timed]] = {name: [] for name in [*ways, FIRST]}
    for index in range(rounds):
        names = list(ways)
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            if name not in figures:
                continue
            with emptied(place) as root:
                try:
                    saves = ways[name](root)
                    figures[name].append(saves[-1])
                    if name == ASYNC:
                        figures[FIRST].append(saves[0])
                except (DevrunError, TypeError) as error:
                    sys.stdout.write(f"  {name}: left out, {error}\n")
                    del figures[name]
    return figures


@dataclass
class Resumed:
    """What one way took: seconds, and MiB beyond what was there before."""

    seconds: list[float] = field(default_factory=list)
    mebibytes: list[float] = field(default_factory=list)

    def measure(self, load: Callable[[], None]) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = resident("VmHWM")
        start = clock()
        load()
        self.seconds.append(clock() - start)
        self.mebibytes.append(resident("VmHWM") - before)


def resident(field_name: str) -> float:
    """A field of /proc/self/status, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(field_name))
    return int(line.split()[1]) / 1024


def time_resuming(parameters: float, place: Path, rounds: int) -> dict[str, Resumed]:
    """What it takes until weights and optimizer are back."""
    model, optimizer = build(parameters)
    with emptied(place) as root:
        with_torch(model, optimizer, root)
        with_dcp(model, optimizer, root / "dcp", wait=True)
        with_devrun(model, optimizer, root / "devrun", {"max_keep_ckpts": 1})
        newest = find_latest(root / "devrun")
        assert newest is not None
        runner = IterBasedRunner(model, optimizer=optimizer, max_iters=1, device="cpu")

        def from_torch() -> None:
            state = torch.load(root / "state.pth", weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])

        def from_dcp() -> None:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            dcp.load(state, checkpoint_id=root / "dcp", no_dist=True)
            optimizer.load_state_dict(state["optimizer"])

        def only_sha256() -> None:
            for path in newest.iterdir():
                sha256 = hashlib.sha256()
                with path.open("rb") as file:
                    while piece := file.read(1 << 20):
                        sha256.update(piece)

        ways = {
            BASE: from_torch,
            "dcp": from_dcp,
            "devrun": lambda: runner.resume(newest),
            "sha256 alone": only_sha256,
        }
        resumed = {name: Resumed() for name in ways}
        for index in range(rounds):
            shift = index % len(ways)
            for name in [*ways][shift:] + [*ways][:shift]:
                resumed[name].measure(ways[name])
        runner.close()
    return resumed


def time_loading(workers: int, rounds: int) -> tuple[list[float], list[float]]:
    """Microseconds of a batch of 32 small samples: plain loader, devrun's."""
    data = TensorDataset(torch.randn(TURN * 32, 16), torch.zeros(TURN * 32))

    def loader() -> DataLoader[Any]:
        return DataLoader(
            data,
            batch_size=32,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    adapter = CPUAdapter()
    adapter.setup(0)
    prepared = adapter.prepare_dataloader(loader(), training=True)
    plain = loader()
    theirs: list[float] = []
    ours: list[float] = []
    for index in range(rounds + 1):  # the first turn starts the workers
        prepared.set_epoch(index)
        pair: list[tuple[Any, list[float]]] = [(plain, theirs), (prepared, ours)]
        for iterable, times in pair if index % 2 else reversed(pair):
            start = clock()
            for _ in iterable:
                pass
            times.append((clock() - start) * 1e6 / TURN)
    prepared.close()
    adapter.teardown()
    return theirs[1:], ours[1:]


def small_step(steps: int = 60) -> float:
    """Microseconds of an update of a small CNN on 32 images of 32 by 32."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(32, 3, 32, 32), torch.zeros(32, dtype=torch.long)
    times = []
    for _ in range(steps):
        start = clock()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        times.append((clock() - start) * 1e6)
    return statistics.median(times)


def spread(label: str, values: list[float], unit: str) -> str:
    """`label   median (lower to upper quartile; minimum to maximum)`."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (
        f"  {label:<22}{middle:8.3f} {unit:<2}  (quartiles {low:.3f} to {high:.3f}; "
        f"all {min(values):.3f} to {max(values):.3f})\n"
    )


def report_saving(figures: dict[str, list[Timed]]) -> str:
    """Seconds of each way, and its share of the time of `torch.save` in its round."""
    base = [still for still, _ in figures[BASE]]
    lines = ["training stands still\n"]
    for name, values in figures.items():
        lines.append(spread(name, [still for still, _ in values], "s"))
    lines.append(f"the same, times that of {BASE} in the same round\n")
    for name, values in figures.items():
        if name != BASE:
            shares = [v[0] / b for v, b in zip(values, base, strict=True)]
            lines.append(spread(name, shares, "x"))
    lines.append("until it is on the disk\n")
    for name in ("dcp.async", ASYNC):
        if name in figures:
            lines.append(spread(name, [total for _, total in figures[name]], "s"))
    return "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--parameters", type=float, default=100e6)
    parser.add_argument("--dir", type=Path, default=Path("."), help="disk to write to")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    logging.getLogger("devrun").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    model, optimizer = build(args.parameters)
    count = sum(p.numel() for p in model.parameters())
    out = sys.stdout
    out.write(f"torch {torch.__version__}, {count / 1e6:.1f} M parameters, AdamW\n")
    out.write(report_saving(time_saving(model, optimizer, args.dir, args.rounds)))
    del model, optimizer
    out.write("resume from the page cache\n")
    resumed = time_resuming(args.parameters, args.dir, args.rounds)
    for name, way in resumed.items():
        out.write(spread(name, way.seconds, "s"))
    pairs = zip(resumed[BASE].seconds, resumed["sha256 alone"].seconds, strict=True)
    both = [load + digest for load, digest in pairs]
    for name, base in ((BASE, resumed[BASE].seconds), (f"{BASE} + sha256", both)):
        shares = [a / b for a, b in zip(resumed["devrun"].seconds, base, strict=True)]
        out.write(spread(f"devrun / {name}", shares, "x"))
    for name in (BASE, "dcp", "devrun"):
        out.write(f"  {name:<22}{max(resumed[name].mebibytes):8.0f} MiB more at most\n")
    step = small_step()
    out.write(f"loading 32 small samples; a small CNN's step on 32: {step:.0f} us\n")
    for workers in (0, 2):
        plain, ours = time_loading(workers, 4 * args.rounds)
        shares = [100 * (a - b) / step for a, b in zip(ours, plain, strict=True)]
        out.write(spread(f"{workers} workers, plain", plain, "us"))
        out.write(spread(f"{workers} workers, devrun", ours, "us"))
        out.write(spread(f"{workers} workers, share", shares, "%"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
