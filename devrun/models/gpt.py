"""A GPT-2 language model.

Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; the sizes
and names follow the released code (openai/gpt-2, src/model.py).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from devrun.errors import ConfigError
from devrun.registry import MODELS


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean of `logits` (N, T, vocabulary) at t against `labels` (N, T) at t + 1,
    of those that are not -100."""
    return F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(),
        labels[:, 1:].flatten(),
        ignore_index=-100,
    )


class CausalAttention(nn.Module):
    """Multi-head self-attention that looks back only."""

    def __init__(self, n_embd: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.dropout = dropout
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x: Tensor, past_key_values: Any = None) -> Tensor:
        batch, length, dim = x.shape
        together = self.c_attn(x)  # of all heads, or those that this process has
        query, key, value = (
            part.view(batch, length, -1, dim // self.n_head).transpose(1, 2)
            for part in together.split(together.shape[2] // 3, dim=2)
        )
        rate = self.dropout if self.training else 0.0
        mask = None
        if past_key_values is not None:
            key, value = past_key_values.update(key, value)
            mask = past_key_values.visible
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=rate, is_causal=mask is None
        )
        out = self.c_proj(out.transpose(1, 2).flatten(2))
        return F.dropout(out, self.dropout, self.training)


class Mlp(nn.Module):
    def __init__(self, n_embd: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.c_fc = nn.Linear(n_embd, 4 * n_embd)
        self.c_proj = nn.Linear(4 * n_embd, n_embd)

    def forward(self, x: Tensor) -> Tensor:
        out = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return F.dropout(out, self.dropout, self.training)


class Block(nn.Module):
    """Pre-norm attention and MLP, each around a shortcut."""

    def __init__(self, n_embd: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalAttention(n_embd, n_head, dropout)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = Mlp(n_embd, dropout)

    def forward(self, x: Tensor, past_key_values: Any = None) -> Tensor:
        x = x + self.attn(self.ln_1(x), past_key_values)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


@MODELS.register_module()
class GPT(nn.Module):
    """Predicts each next token; the defaults are GPT-2 small.

    `forward(input_ids, labels=None)` takes (N, T) token numbers and returns
    `{"loss", "logits"}`, logits of shape (N, T, vocab_size). As in Hugging Face's
    models `labels` are the same tokens, shifted by one in here: logits at t are
    compared with labels at t + 1, and a label of -100 counts for nothing. Input and
    output embedding are one matrix. `past_key_values` is a `KeyValues`, which says the
    positions too.

    Raises:
        ConfigError: n_embd is no multiple of n_head; from `forward`, a sequence longer
            than block_size.
    """

    loss_type = "ForCausalLM"
    """Hugging Face's name for a loss whose labels are shifted by one."""
    fsdp_blocks = ("Block",)
    """Classes of what is gathered at a time where weights are divided."""
    tensor_plan: ClassVar = {
        "h.*.attn.c_attn": "qkv",
        "h.*.attn.c_proj": "rowwise",
        "h.*.mlp.c_fc": "colwise",
        "h.*.mlp.c_proj": "rowwise",
    }
    """How single matrices are divided (`devrun.parallel`)."""

    def __init__(
        self,
        vocab_size: int = 50257,
        block_size: int = 1024,
        n_layer: int = 12,
        n_head: int = 12,
        n_embd: int = 768,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if n_embd % n_head:
            raise ConfigError.of(
                "n_embd", f"{n_embd} is not a multiple of n_head {n_head}"
            )
        self.block_size = block_size
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(Block(n_embd, n_head, dropout) for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self._init_weights(n_layer)

    def _init_weights(self, n_layer: int) -> None:
        """Normal 0.02, positions 0.01, biases 0, as the released code.

        The last layer of each residual branch is scaled by 1/sqrt(N), N = 2 n_layer
        branches (section 2.3 of the paper).
        """
        for name, param in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(param, std=0.02 / (2 * n_layer) ** 0.5)
            elif name == "wpe.weight":
                nn.init.normal_(param, std=0.01)
            elif name.endswith("bias"):
                nn.init.zeros_(param)
            elif param.dim() == 2:
                nn.init.normal_(param, std=0.02)

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        past_key_values: Any = None,
    ) -> dict[str, Any]:
        length = input_ids.shape[1]
        if length > self.block_size:
            raise ConfigError(
                f"a sequence of {length} tokens for a GPT with block_size "
                f"{self.block_size}"
            )
        if past_key_values is None:
            positions = torch.arange(length, device=input_ids.device)
        else:
            positions = past_key_values.positions
        x = self.drop(self.wte(input_ids) + self.wpe(positions))
        more = () if past_key_values is None else (past_key_values,)
        for block in self.h:
            x = block(x, *more)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        loss = None if labels is None else next_token_loss(logits, labels)
        return {"loss": loss, "logits": logits}
