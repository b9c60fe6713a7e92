"""Continuing the prompts of a data set, and how good the continuations are.

Shapes are few: prompts are padded to a bucket, a power of two, rows to the batch, and
one cache is as long as the longest bucket and the new tokens. A device that compiles
makes a graph for each bucket and one more, which all other tokens share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Callable, Sequence, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from devrun.construct import call
from devrun.data.bucketing import Buckets
from devrun.dist import gather_objects
from devrun.errors import ConfigError, DataError, UnsupportedFeatureError, nearest
from devrun.metrics import SetMetric
from devrun.models.calls import IGNORED
from devrun.run import Run

SMALLEST = 16
"""Tokens of the smallest bucket."""


@dataclass(frozen=True)
class Generation:
    """How prompts are continued.

    Args:
        max_new_tokens: of each.
        prompt_tokens: how many of a sample's tokens are its prompt, the others being
            what should follow; by default those without a label (-100), else all.
        temperature: 0 takes the likeliest token each time; else a token is drawn, by
            (`seed`, the sample's place, the token's place), so that neither batches
            nor devices nor processes change what is drawn.
        top_k: of how many of the likeliest.
        stop: the token that ends a text; by default the model's.
        metrics: of `METRICS`, in an evaluation.
    """

    max_new_tokens: int
    prompt_tokens: int | None = None
    temperature: float = 0.0
    top_k: int | None = None
    seed: int = 0
    stop: int | None = None
    metrics: Sequence[str] = ("exact_match",)

    def __post_init__(self) -> None:
        least = {"max_new_tokens": 1, "prompt_tokens": 1, "top_k": 1, "stop": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < low):
                raise ConfigError.of(name, f"must be {low} or more, got {value!r}")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError.of(
                "temperature", f"must be 0 or more, got {self.temperature!r}"
            )
        for metric in self.metrics:
            if metric not in METRICS:
                hint = nearest(str(metric), METRICS)
                raise ConfigError.of("metrics", f"has no metric {metric!r}; {hint}")


@dataclass(frozen=True)
class Continued:
    """One prompt with what follows it; all tokens 1-d, on the host."""

    index: int
    prompt: Tensor
    reference: Tensor
    """What should follow, where the data set says it."""
    tokens: tuple[int, ...] = ()


def generation_of(given: Mapping[str, Any]) -> Generation:
    """By the arguments in a config."""
    made: Generation = call(Generation, dict(given), given)
    return made


def continued(run: Run, dataloader: Any, how: Generation) -> list[Continued]:
    """Each sample of a loader's data set, continued; on all ranks the whole list.

    Called while `run.evaluating()`.

    Raises:
        ConfigError: the model cannot generate so many tokens.
        DataError: the samples have no `input_ids`.
    """
    loader = run.prepare_eval_loader(dataloader)
    if loader.in_step is not None:
        raise UnsupportedFeatureError(
            "weights that are divided over processes do not generate: use one process",
            key="parallel",
        )
    rank, world, _ = run.adapter.data_share
    places = range(rank, len(loader.dataset), world)
    prompts = [_prompt(loader.dataset, place, how) for place in places]
    longest = max((len(one.prompt) for one in prompts), default=1)
    buckets = _buckets(run.model, longest, how)
    slots = buckets.fit(longest) + how.max_new_tokens
    rows = max(1, min(int(dataloader.batch_size or 1), len(loader.dataset)))
    stop = _stop_of(run.model) if how.stop is None else how.stop
    done: list[Continued] = []
    for first in range(0, len(prompts), rows):
        some = prompts[first : first + rows]
        size = buckets.fit(max(len(one.prompt) for one in some))
        full = [*some, *[some[-1]] * (rows - len(some))]
        made = _continue(run, full, size, slots, how, stop)
        done += [replace(one, tokens=tuple(new)) for one, new in zip(some, made)]
    return sorted(chain(*gather_objects(done)), key=lambda one: one.index)


class GenerationScores(SetMetric):
    """The metrics of continuations against what should have followed.

    Args:
        given: of a config, the arguments of `Generation`.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.how = generation_of(given)
        self.names = tuple(self.how.metrics)

    def of_set(self, run: Run, dataloader: Any) -> dict[str, float]:
        found = continued(run, dataloader, self.how)
        judged = [one for one in found if len(one.reference)]
        if not judged:
            raise DataError(
                "no sample says what should follow its prompt: give "
                "generate.prompt_tokens, or labels of -100 for the prompt"
            )
        pairs = [(one.tokens, tuple(one.reference.tolist())) for one in judged]
        text = text_of(dataloader.dataset)
        return {name: METRICS[name](pairs, text) for name in self.names}


def text_of(dataset: Any) -> Callable[[Sequence[int]], str] | None:
    """What makes text of tokens: `decode` of the data set, or of its processor."""
    for owner in (dataset, getattr(dataset, "processor", None)):
        decode = getattr(owner, "decode", None)
        if callable(decode):
            return lambda tokens: str(decode(list(tokens)))
    return None


def _prompt(dataset: Any, place: int, how: Generation) -> Continued:
    sample = dataset[place]
    if not isinstance(sample, Mapping) or "input_ids" not in sample:
        raise DataError(
            f"sample {place} has no input_ids: there is nothing to continue"
        )
    tokens = torch.as_tensor(sample["input_ids"]).reshape(-1)
    if "attention_mask" in sample:
        tokens = tokens[torch.as_tensor(sample["attention_mask"]).reshape(-1).bool()]
    cut, follows = len(tokens), tokens
    if "labels" in sample:
        labels = torch.as_tensor(sample["labels"]).reshape(-1)
        follows = labels
    if how.prompt_tokens is not None:
        cut = min(how.prompt_tokens, cut)
    elif "labels" in sample:
        answered = (labels[:cut] != IGNORED).nonzero()
        cut = int(answered[0]) if len(answered) and answered[0] else cut
    if tokens.is_floating_point():
        raise DataError(
            f"the input_ids of sample {place} are {tokens.dtype}: give ints"
        )
    if not cut:
        raise DataError(f"sample {place} is empty: there is nothing to continue")
    follows = follows[cut:]
    follows = follows[follows != IGNORED][: how.max_new_tokens]
    return Continued(place, tokens[:cut], follows)


def _buckets(model: Any, longest: int, how: Generation) -> Buckets:
    config = getattr(model, "config", None)
    limit = getattr(
        model, "block_size", getattr(config, "max_position_embeddings", None)
    )
    if limit is not None and longest + how.max_new_tokens > limit:
        raise ConfigError.of(
            "max_new_tokens",
            f"{how.max_new_tokens} after a prompt of {longest} tokens are more than "
            f"the model's {limit}; shorten one of the two (prompt_tokens)",
        )
    sizes = [SMALLEST]
    while sizes[-1] < longest:
        sizes.append(2 * sizes[-1])
    return Buckets(tuple(sorted({min(size, limit or size) for size in sizes})))


def _stop_of(model: Any) -> int | None:
    """The token by which a model of Hugging Face ends a text."""
    config = getattr(model, "generation_config", None)
    stop = getattr(config, "eos_token_id", None)
    return stop[0] if isinstance(stop, (list, tuple)) else stop


def _continue(
    run: Run,
    rows: Sequence[Continued],
    size: int,
    slots: int,
    how: Generation,
    stop: int | None,
) -> list[list[int]]:
    """New tokens of each row; a row that has stopped goes on for the others' sake."""
    lengths = torch.tensor([len(one.prompt) for one in rows])
    batch = {
        "input_ids": torch.stack(
            [F.pad(one.prompt, (0, size - len(one.prompt))) for one in rows]
        ),
        "position_ids": torch.arange(size).repeat(len(rows), 1),
        "last": lengths - 1,
    }
    made: list[list[int]] = [[] for _ in rows]
    for place in range(how.max_new_tokens):
        outputs = run.eval_step(batch, "generate")
        logits = outputs["logits"].float().cpu()
        picked = [_pick(row, how, one.index, place) for row, one in zip(logits, rows)]
        for tokens, token in zip(made, picked):
            if stop is None or stop not in tokens:
                tokens.append(token)
        if stop is not None and all(stop in tokens for tokens in made):
            break
        cache = outputs["cache"]
        batch = {
            "input_ids": torch.tensor(picked)[:, None],
            "position_ids": (lengths + place)[:, None],
            "last": torch.zeros_like(lengths),
            "cache": F.pad(cache, (0, 0, 0, slots - cache.shape[-2])),
        }
    return made


def _pick(logits: Tensor, how: Generation, index: int, place: int) -> int:
    """The next token. What is drawn is the largest of the logits with noise (Gumbel's),
    which has the softmax's chances."""
    if not how.temperature:
        return int(logits.argmax())
    if how.top_k is not None and how.top_k < len(logits):
        least = logits.topk(how.top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    key = np.array([how.seed % 2**64, index], np.uint64)
    stream = np.random.Generator(np.random.Philox(key=key, counter=place))
    noise = torch.from_numpy(stream.gumbel(size=len(logits)))
    return int((logits.double() / how.temperature + noise).argmax())


_Pairs = Sequence[Tuple[Tuple[int, ...], Tuple[int, ...]]]
_Text = Callable[[Sequence[int]], str]


def _exact_match(pairs: _Pairs, text: _Text | None) -> float:
    """The share of samples all of whose tokens are right, as far as they are known."""
    return float(np.mean([made[: len(wanted)] == wanted for made, wanted in pairs]))


def _bleu(pairs: _Pairs, text: _Text | None) -> float:
    made, wanted = _texts(pairs, text)
    score = _torchmetrics("bleu_score")(made, [[each] for each in wanted])
    return float(score)


def _rouge(pairs: _Pairs, text: _Text | None) -> float:
    """The F-measure of the longest common subsequence."""
    made, wanted = _texts(pairs, text)
    score = _torchmetrics("rouge_score")(made, wanted, rouge_keys="rougeL")
    return float(score["rougeL_fmeasure"])


def _texts(pairs: _Pairs, text: _Text | None) -> tuple[list[str], list[str]]:
    if text is None:
        raise ConfigError(
            "bleu and rouge compare texts, and the data set has no decode(tokens): "
            "give it one, or take exact_match"
        )
    return [text(made) for made, _ in pairs], [text(wanted) for _, wanted in pairs]


def _torchmetrics(name: str) -> Any:
    try:
        from torchmetrics.functional import text
    except ImportError:
        raise ConfigError(
            "bleu and rouge are torchmetrics': pip install torchmetrics"
        ) from None
    return getattr(text, name)


METRICS: Mapping[str, Callable[[_Pairs, _Text | None], float]] = {
    "exact_match": _exact_match,
    "bleu": _bleu,
    "rouge": _rouge,
}
