"""A language model of LSTM layers.

Zaremba et al. 2014, "Recurrent Neural Network Regularization", without its dropout
between layers' time steps.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from devrun.models.gpt import next_token_loss
from devrun.registry import MODELS


@MODELS.register_module()
class LSTM(nn.Module):
    """Predicts each next token; takes and returns what `GPT` does.

    Args:
        vocab_size: tokens there are.
        hidden_size: of the embedding and of each layer.
        num_layers: how many.
        dropout: before each layer and after the last.
    """

    loss_type = "ForCausalLM"

    def __init__(
        self,
        vocab_size: int = 256,
        hidden_size: int = 650,
        num_layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            nn.LSTM(hidden_size, hidden_size, batch_first=True)
            for _ in range(num_layers)
        )
        self.head = nn.Linear(hidden_size, vocab_size)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None
    ) -> dict[str, Any]:
        x = self.drop(self.embedding(input_ids))
        for layer in self.layers:
            x = self.drop(layer(x)[0])
        logits = self.head(x)
        loss = None if labels is None else next_token_loss(logits, labels)
        return {"loss": loss, "logits": logits}
