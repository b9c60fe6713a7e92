"""`performance: fast` against plain, on the CPU: the same updates in turns.

Both arms train the same model on the same batches in one process, in turns of a few
updates, A B B A. Counted is processor time, which other programs disturb less; a third
arm, plain again, shows what the comparison can resolve.

    python benchmarks/fast.py [--turns 20] [--threads 1] [--case NAME ...]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from devrun.devices.resolve import resolve_device
from devrun.models import GPT, ResNet, StepModule
from devrun.step import UpdatePolicy

UPDATES = 3
"""Of a turn."""


def digits() -> tuple[nn.Module, Any, Any]:
    """ResNet-8 of the digits config: 64 images of 8x8."""
    model = ResNet(
        stem="cifar", stage_blocks=(1, 1, 1), base_channels=16, in_channels=1,
        num_classes=10,
    )  # fmt: skip
    return model, nn.CrossEntropyLoss(), _images(64, 1, 8)


def resnet18() -> tuple[nn.Module, Any, Any]:
    """ResNet-18 on 16 images of 32x32."""
    model = ResNet(18, num_classes=10, stem="cifar")
    return model, nn.CrossEntropyLoss(), _images(16, 3, 32)


def gpt() -> tuple[nn.Module, Any, Any]:
    """The tiny GPT of its config: 16 texts of 128 bytes."""
    model = GPT(256, 128, n_layer=4, n_head=4, n_embd=128, dropout=0.0)
    tokens = torch.randint(256, (16, 128))
    return model, None, {"input_ids": tokens, "labels": tokens}


def _images(count: int, channels: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, channels, size, size), torch.arange(count) % 10


CASES: dict[str, Callable[[], tuple[nn.Module, Any, Any]]] = {
    "resnet8": digits,
    "resnet18": resnet18,
    "gpt": gpt,
}


class Arm:
    """One prepared training; `turn` gives the processor time of an update, in ms."""

    def __init__(self, case: str, options: dict[str, Any], **policy: Any) -> None:
        torch.manual_seed(0)
        model, loss, self.batch = CASES[case]()
        kind: Any = torch.optim.AdamW if case == "gpt" else torch.optim.SGD
        more: dict[str, float] = (
            {} if case == "gpt" else {"momentum": 0.9, "weight_decay": 5e-4}
        )
        optimizer = kind(model.parameters(), lr=1e-3, **more)
        self.adapter = resolve_device({"type": "cpu", **options})
        self.adapter.setup(0)
        step = StepModule(model, loss)
        self.model, self.optimizer = self.adapter.prepare(
            step, optimizer, UpdatePolicy(**policy)
        )
        self.model.train()

    def turn(self, updates: int = UPDATES) -> float:
        began = time.process_time()
        for _ in range(updates):
            self.adapter.train_step(self.model, self.batch, self.optimizer)
        return 1e3 * (time.process_time() - began) / updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for case in args.case:
        compare(case, args.turns)


def compare(case: str, turns: int) -> None:
    """Print the ratio of an update of each arm to one of plain, by turns."""
    arms = {
        "plain": Arm(case, {}),
        "plain again": Arm(case, {}),
        "fast in fp32, channels first": Arm(
            case, {"performance": "fast", "channels_last": False}, precision_open=False
        ),
        "fast": Arm(case, {"performance": "fast"}),
    }
    spent: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(turns + 1):
        for name in list(arms)[:: 1 if number % 2 else -1]:
            spent[name].append(arms[name].turn())
    print(f"{case}:")
    for name, times in spent.items():
        pairs = zip(times[1:], spent["plain"][1:], strict=True)
        low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
        print(
            f"  {name}: {statistics.median(times[1:]):.2f} ms, "
            f"{middle:.3f} of plain ({low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
