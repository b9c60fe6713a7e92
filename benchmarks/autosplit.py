"""How `split: auto` divides ViT-B/16 and ResNet-50, and an even split by count.

python benchmarks/autosplit.py [--ipus 2 4 8] [--micro-batch 17] [--half] [--tables]

The figures are the forward floating-point operations of the largest stage, which sets
the pace of a pipeline. The even splits give every stage the same number of blocks:
of all blocks, or of the repeated layers alone, as people do it by hand. Whether a
division fits in an Mk2 IPU is an estimate, and `auto` takes the best of those that fit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from devrun.devices.ipu.autosplit import (
    IPU_MEMORY,
    balance,
    largest_cost,
    largest_memory,
)
from devrun.devices.ipu.measure import Block
from devrun.models import ResNet, StepModule, VisionTransformer

MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "ViT-B/16": (VisionTransformer, "blocks."),
    "ResNet-50": (lambda: ResNet(50), "layer"),
}


def even(count: int, stages: int) -> list[int]:
    """First blocks of stages with as many blocks each as can be."""
    return [count * stage // stages for stage in range(stages)]


def even_over_layers(blocks: Sequence[Block], prefix: str, stages: int) -> list[int]:
    """The same for the repeated layers; what is before and after goes to the ends."""
    layers = [i for i, block in enumerate(blocks) if block.name.startswith(prefix)]
    return [0, *(layers[place] for place in even(len(layers), stages)[1:])]


def told(blocks: Sequence[Block], starts: Sequence[int], mean: float) -> str:
    cost = largest_cost(blocks, starts)
    fits = "fits" if largest_memory(blocks, starts) <= IPU_MEMORY else "does not fit"
    return f"{cost / 1e9:.1f} GFLOP ({cost / mean:.3f} of the mean, {fits})"


def compare(name: str, ipus: int, micro_batch: int, half: bool, table: bool) -> None:
    kind, prefix = MODELS[name]
    model = StepModule(kind(), nn.CrossEntropyLoss())
    images = torch.empty(micro_batch, 3, 224, 224)
    if half:
        model.half()
        images = images.half()
    batch = images, torch.zeros(micro_batch, dtype=torch.long)
    start = time.perf_counter()
    split = balance(model, batch, ipus)
    seconds = time.perf_counter() - start
    blocks = split.blocks
    divisions = {
        "auto": split.starts,
        "even by count": even(len(blocks), ipus),
        "even by layers": even_over_layers(blocks, prefix, ipus),
    }
    mean = sum(block.flops for block in blocks) / ipus
    begins = ", ".join(str(edge["layer_to_call"]) for edge in split.edges)
    shown = ", ".join(
        f"{key} {told(blocks, starts, mean)}" for key, starts in divisions.items()
    )
    print(f"{name}, {ipus} IPUs: {shown}; {begins} [{seconds:.1f} s]")
    if table:
        print(split.table)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ipus", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--micro-batch", type=int, default=17)
    parser.add_argument(
        "--half", action="store_true", help="weights and images in half"
    )
    parser.add_argument("--tables", action="store_true", help="print every block")
    args = parser.parse_args()
    for name in MODELS:
        for ipus in args.ipus:
            compare(name, ipus, args.micro_batch, args.half, args.tables)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
