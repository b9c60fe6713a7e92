"""Prompts of several lengths, and what a device makes of them."""

import torch
from torch.utils.data import DataLoader

from devrun.hooks.evaluation.generation import Generation, continued
from devrun.models import GPT
from devrun.runners import IterBasedRunner

LENGTHS = (3, 9, 20, 5, 17)
"""Of two buckets in each batch of two; the last batch is not full."""


def prompts(vocabulary=61):
    draw = torch.Generator().manual_seed(5)
    return [
        {"input_ids": torch.randint(3, vocabulary, (length,), generator=draw)}
        for length in LENGTHS
    ]


def gpt():
    torch.manual_seed(2)
    model = GPT(61, block_size=40, n_layer=2, n_head=2, n_embd=16, dropout=0.0)
    for parameter in model.parameters():  # so that tokens differ
        parameter.data *= 8
    return model


def generated(model, device, samples=None, rows=2, **how):
    runner = IterBasedRunner(model, device=device, max_iters=1)
    loader = DataLoader(samples or prompts(), batch_size=rows, collate_fn=list)
    try:
        with runner.evaluating():
            found = continued(runner, loader, Generation(8, **how))
    finally:
        runner.close()
    return [one.tokens for one in found]


def plain(model):
    """The likeliest tokens, each by a forward pass over all before it."""
    made = []
    for sample in prompts():
        tokens = sample["input_ids"][None]
        for _ in range(8):
            with torch.no_grad():
                last = model.eval()(tokens)["logits"][:, -1]
            tokens = torch.cat([tokens, last.argmax(-1)[None]], 1)
        made.append(tuple(tokens[0, sample["input_ids"].numel() :].tolist()))
    return made
