"""What each process does for test_llama.py: the matrices of a Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.parallel.worker import train
from tests.support.ranks import do

PLAN = {
    "*.[qkv]_proj": "colwise",
    "*.o_proj": "rowwise",
    "*.gate_proj": "colwise",
    "*.up_proj": "colwise",
    "*.down_proj": "rowwise",
}
"""As in docs/parallel.md."""


def llama() -> Any:
    torch.manual_seed(2)
    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 32}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes, **heads))


def parts() -> Any:
    return train({"mesh": {"tensor": 2}, "plan": PLAN}, model=llama())


def scenarios(_: Path) -> dict[str, Any]:
    return {"parts": parts}


if __name__ == "__main__":
    do(scenarios)
