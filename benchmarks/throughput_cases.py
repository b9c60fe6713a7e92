"""What `benchmarks/throughput.py` trains: models, inputs and batches, for two sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from devrun.models import GPT, ResNet, VisionTransformer


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

    def flops(self) -> int | None:
        """Of an update of one batch: matrix products and convolutions, both ways.

        None for a model that reads values, which there are none of on the meta device.
        """
        with torch.device("meta"):
            model = self.model()
            size = (1, *self.shape)
            x = torch.randint(2, size) if self.is_text else torch.randn(size)
        with FlopCounterMode(display=False) as counter:
            try:
                model(x).sum().backward()
            except RuntimeError:
                return None
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
        "resnet50": Case(
            lambda: ResNet(50, 10, base_channels=32), (3, 32, 32), 8, 10, True
        ),
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
