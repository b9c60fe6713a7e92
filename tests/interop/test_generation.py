"""Hugging Face's models generate the tokens that `transformers` generates."""

import pytest
import torch

from tests.support.generation import generated, prompts
from tests.support.packages import let_torchvision_load
from tests.support.strict import zip_strict

transformers = pytest.importorskip("transformers")
let_torchvision_load()  # which transformers imports where it is

SMALL = {"vocab_size": 61, "max_position_embeddings": 40, "eos_token_id": 7}
WIDTH = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
CONFIGS = {
    "GPT2": {**SMALL, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "Llama": {**SMALL, **WIDTH, **HEADS},
    "Qwen2": {**SMALL, **WIDTH, **HEADS},
}


def model_of(name):
    torch.manual_seed(3)
    config = getattr(transformers, f"{name}Config")(**CONFIGS[name])
    kind = f"{name}LMHeadModel" if name == "GPT2" else f"{name}ForCausalLM"
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():  # so that tokens differ
        parameter.data *= 8 if parameter.dim() > 1 else 1
    return model


@pytest.mark.parametrize("device", ["cpu", "ipu"])
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_those_of_transformers(name, device):
    where = device if device == "cpu" else {"type": device, "emulate": True}
    found = generated(model_of(name), where)
    model = model_of(name)
    for sample, tokens in zip_strict(prompts(), found):
        ids = sample["input_ids"][None]
        whole = model.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
        assert tokens == tuple(whole[0, ids.shape[1] :].tolist())
