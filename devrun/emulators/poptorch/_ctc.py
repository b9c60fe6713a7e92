"""Decoding of CTC outputs by prefix beam search (Hannun et al., 2014), on the host."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Tuple

import torch
from torch.overrides import handle_torch_function, has_torch_function

from poptorch import _capture
from poptorch._errors import Error
from poptorch._options_base import check_int

Decoded = Tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def ctc_beam_search_decoder(
    probs: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> Decoded:
    """The `top_paths` likeliest label sequences of each sample.

    Args:
        probs: Log probabilities, (time, batch, classes).
        lengths: How many time steps of each sample count, (batch,).

    Returns:
        Log probabilities (batch, top_paths), lengths (batch, top_paths) and the labels
        (batch, top_paths, time), filled up with blanks.

    Raises:
        Error: A training model, shapes other than these, or more paths than beams.
    """
    recorder = _capture.current()
    if recorder is not None and recorder.training:
        raise Error("ctc_beam_search_decoder is supported in inference models only")
    if probs.dim() != 3 or lengths.shape != probs.shape[1:2]:
        raise Error(
            "ctc_beam_search_decoder takes probabilities (time, batch, classes) and "
            f"lengths (batch), not {list(probs.shape)} and {list(lengths.shape)}"
        )
    check_int(blank, "blank", 0)
    check_int(beam_width, "beam_width", 1)
    if not 0 < top_paths <= beam_width or blank >= probs.shape[2]:
        raise Error(
            f"ctc_beam_search_decoder: {top_paths} paths of {beam_width} beams with "
            f"blank {blank} of {probs.shape[2]} classes"
        )
    if has_torch_function((probs, lengths)):
        return handle_torch_function(
            _decoded, (probs, lengths), probs, lengths, blank, beam_width, top_paths
        )
    return _decoded(probs, lengths, blank, beam_width, top_paths)


def _decoded(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int, width: int, top: int
) -> Decoded:
    time, batch, _ = probs.shape
    scores = torch.full((batch, top), -math.inf)
    sizes = torch.zeros((batch, top), dtype=torch.int32)
    paths = torch.full((batch, top, time), blank, dtype=torch.int32)
    if _capture.current() is not None:
        return scores, sizes, paths  # a capture wants the shapes
    for sample in range(batch):
        rows = probs[: int(lengths[sample]), sample].double().tolist()
        for place, (labels, score) in enumerate(_search(rows, blank, width)[:top]):
            scores[sample, place] = score
            sizes[sample, place] = len(labels)
            paths[sample, place, : len(labels)] = torch.tensor(labels)
    return scores.to(probs.dtype), sizes, paths


def _search(
    rows: list[list[float]], blank: int, width: int
) -> list[tuple[tuple[int, ...], float]]:
    """Label sequences with their log probabilities, likeliest first."""
    nothing = -math.inf
    # Of each sequence: the log probability of ending in a blank, and of not doing so.
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, nothing)}
    for row in rows:
        new: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [nothing] * 2)
        for labels, (ended, open_) in beams.items():
            both = _sum(ended, open_)
            for label, score in enumerate(row):
                if label == blank:
                    _add(new[labels], 0, both + score)
                    continue
                longer = (*labels, label)
                if labels and label == labels[-1]:
                    _add(new[labels], 1, open_ + score)
                    _add(new[longer], 1, ended + score)
                else:
                    _add(new[longer], 1, both + score)
        best = sorted(new.items(), key=lambda item: -_sum(*item[1]))[:width]
        beams = {labels: (pair[0], pair[1]) for labels, pair in best}
    ranked = [(labels, _sum(*pair)) for labels, pair in beams.items()]
    return sorted(ranked, key=lambda item: -item[1])


def _add(pair: list[float], place: int, score: float) -> None:
    pair[place] = _sum(pair[place], score)


def _sum(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
