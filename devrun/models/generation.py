"""A step of generation: the next token's logits, and the keys and values so far.

Every step has one of few shapes, as devices that compile want it: prompts come padded
on the right to the length of a bucket, and after that one token a row, over a cache of
fixed length. What padding left in the cache lies behind each row's position: nothing
attends to it, and the row's own tokens overwrite it.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from devrun.errors import ConfigError
from devrun.models.calls import Wrapped
from devrun.models.steps import logits_of


class KeyValues:
    """What attention layers ask of a cache, in Hugging Face's words.

    Args:
        positions: of the tokens of this step, (N, T).
        held: keys and values of all positions, (N, layers, 2, heads, slots, width);
            None where the step begins the sequences.
    """

    is_compileable = False
    """Whether `transformers` may compile around it; devices do that here."""

    def __init__(self, positions: Tensor, held: Tensor | None) -> None:
        slots = positions.shape[1] if held is None else held.shape[-2]
        at = torch.arange(slots, device=positions.device)
        self._held = held
        self._layers: list[Tensor] = []
        self._here = (at == positions[:, :1])[:, None, None, :, None]
        self.positions = positions
        self.visible = at <= positions[:, None, :, None]
        """Which slots each token may attend to, (N, 1, T, slots)."""

    def update(
        self, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Those of all slots, with these of the next layer, (N, heads, T, width)."""
        both = torch.stack((key, value), 1)
        if self._held is not None:
            both = torch.where(self._here, both, self._held[:, len(self._layers)])
        self._layers.append(both)
        return both[:, 0], both[:, 1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are given

    def whole(self) -> Tensor:
        """All layers' keys and values, as `held` is."""
        return torch.stack(self._layers, 1)


def generate_step(step: Wrapped, batch: dict[str, Tensor]) -> dict[str, Any]:
    """`logits` (N, vocabulary) after the token at `last` (N,), and the new `cache`.

    `batch` has `input_ids` and `position_ids` (N, T), `last`, and after the first step
    the `cache` of the one before.

    Raises:
        ConfigError: the model has no cache of keys and values.
    """
    tokens, positions = batch["input_ids"], batch["position_ids"]
    held = KeyValues(positions, batch.get("cache"))
    kind = next(step.model.parameters()).dtype
    hidden = torch.zeros((), dtype=kind, device=tokens.device)
    least = torch.full_like(hidden, torch.finfo(kind).min)
    given = {
        "past_key_values": held,
        "position_ids": positions,
        "attention_mask": torch.where(held.visible, hidden, least),
        "use_cache": True,
    }
    known = step.signature.parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values()):
        given = {name: value for name, value in given.items() if name in known}
    if "past_key_values" not in given:
        raise ConfigError(
            f"{step.model_name}.forward takes no past_key_values: only a causal "
            "language model with a cache generates, such as GPT or Hugging Face's"
        )
    logits = logits_of(step.model(input_ids=tokens, **given))
    places = torch.arange(tokens.shape[1], device=tokens.device)
    at = (places == batch["last"][:, None]).to(logits.dtype)
    return {
        "loss": None,
        "log_vars": {},
        "num_samples": len(tokens),
        "logits": torch.einsum("nt,ntv->nv", at, logits),
        "cache": held.whole(),
    }
