"""A perceptron: the smallest model that learns something."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from devrun.errors import ConfigTypeError
from devrun.registry import MODELS


@MODELS.register_module()
class MLP(nn.Module):
    """Linear layers with ReLU between them.

    Input (N, ...), flattened to (N, in_features); output (N, num_classes).
    """

    def __init__(
        self,
        in_features: int = 64,
        hidden: Sequence[int] = (64,),
        num_classes: int = 10,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(hidden, (list, tuple)):
            raise ConfigTypeError.of(
                "hidden", f"must be a list of widths, got {hidden!r}"
            )
        layers: list[nn.Module] = [nn.Flatten()]
        width = in_features
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
            width = size
        layers.append(nn.Linear(width, num_classes))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out
