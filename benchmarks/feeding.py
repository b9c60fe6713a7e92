"""Images a second of devrun's loader and of a plain DataLoader, from JPEG files.

Both read the same files through the same transforms (a random crop of the Inception
kind, a flip, `ToTensor`, `Normalize`), with as many workers. Every round reads an epoch
with each of them, forwards and backwards in turn, so that a change of the machine's
speed meets all; the first epoch, in which workers start, is left out. A ratio is that
of two readings of one round.

    python benchmarks/feeding.py [--images 256] [--rounds 5] [--workers 0 1 2]

Where Accelerate can be imported, the DataLoader that its `prepare` wraps is measured
too. Lightning iterates the DataLoader as it is given: its row is the plain one's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from devrun.data import ImageFolder, build_dataloader
from devrun.devices import resolve_device

PIPELINE = [
    {"type": "RandomResizedCrop", "size": 224},
    {"type": "RandomHorizontalFlip"},
    {"type": "ToTensor"},
    {"type": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
]


def write_images(folder: Path, count: int) -> None:
    """JPEGs of 500 x 375 in two classes: smooth noise, as sharp as a photo is."""
    random = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"class{number % 2}"
        place.mkdir(exist_ok=True)
        coarse = random.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        image.save(place / f"{number}.jpg", quality=90)


def loaders(folder: Path, batch: int, workers: int) -> dict[str, Iterable[Any]]:
    """Each way's loader, whose iteration is an epoch."""
    dataset = ImageFolder(folder, pipeline=PIPELINE)

    def plain() -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch,
            shuffle=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        )

    found: dict[str, Iterable[Any]] = {"DataLoader": plain()}
    try:
        from accelerate import Accelerator
    except ImportError:
        pass
    else:
        found["Accelerate"] = Accelerator(cpu=True).prepare(plain())
    adapter = resolve_device("cpu")
    adapter.setup(0)
    made = build_dataloader(dataset, batch, workers)
    found["devrun"] = adapter.prepare_dataloader(made, training=True)
    return found


def epoch(loader: Iterable[Any], clock: Callable[[], float]) -> float:
    """Images a second of one epoch."""
    began, count = clock(), 0
    for images, _ in loader:
        count += len(images)
    return count / (clock() - began)


def measure(folder: Path, batch: int, workers: int, rounds: int) -> None:
    ways = loaders(folder, batch, workers)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        order = list(ways) if number % 2 else list(reversed(ways))
        for name in order:
            speed = epoch(ways[name], time.perf_counter)
            if number:
                speeds[name].append(speed)
    for name, found in speeds.items():
        ratios = [a / b for a, b in zip(found, speeds["DataLoader"], strict=True)]
        print(
            f"| {workers} | {name} | {statistics.median(found):.0f} "
            f"({min(found):.0f} to {max(found):.0f}) | {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_images(folder, args.images)
        size = sum(path.stat().st_size for path in folder.glob("*/*.jpg"))
        print(f"{args.images} JPEGs, {size / args.images / 1000:.0f} kB each")
        print("| workers | | images a second | to the DataLoader |\n|---|---|---|---|")
        for workers in args.workers:
            measure(folder, args.batch, workers, args.rounds)


if __name__ == "__main__":
    main()
