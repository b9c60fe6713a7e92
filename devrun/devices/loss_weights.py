"""`LossWeights`: how much each micro-batch of an update counts, here and over ranks.

The gradient of an update is that of one mean over everything it holds. Where the losses
are means over targets (tokens), a micro-batch counts for its valid ones, as with
`num_items_in_batch` of Hugging Face; else for its samples. The counts stay on the
device: nothing waits for them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch import Tensor

from devrun.dist import get_dist_info
from devrun.step import StepOutput
from devrun.tensors import batch_size_of

CountItems = Callable[[Any], "Tensor | None"]
"""How many items the loss of a batch is the mean over; None where samples count."""


def count_nothing(batch: Any) -> None:
    """For losses that are a mean over samples."""


class LossWeights:
    """Of the micro-batches `parts` of one update.

    On several ranks the gradients are averaged, so that a rank with fewer items than
    the others must count for less: their number is summed over the ranks.
    """

    def __init__(self, parts: Sequence[Any], count_items: CountItems) -> None:
        self._sizes = [1] if len(parts) == 1 else [batch_size_of(p) for p in parts]
        self._samples = sum(self._sizes)
        self._done: list[StepOutput] = []
        counted = [count_items(part) for part in parts]
        self._items = [count for count in counted if count is not None]
        if len(self._items) < len(parts):
            self._items.clear()
            return
        self._mine = torch.stack(self._items).sum()
        self._all = self._mine
        self._world = get_dist_info()[1]
        if self._world > 1:
            self._all = self._mine.clone()
            sys.modules["torch.distributed"].all_reduce(self._all)

    def of_update(self, outputs: StepOutput, loss: Tensor) -> Tensor:
        """The loss of the next micro-batch as its part of the mean, for backward.

        `outputs`, with the detached loss, are kept for `merged`.
        """
        outputs["log_vars"].setdefault("loss", outputs["loss"])
        index = len(self._done)
        self._done.append(outputs)
        if not self._items:
            if len(self._sizes) == 1:
                return loss
            return loss * (self._sizes[index] / self._samples)
        part: Tensor = _weighed(loss, self._items[index], self._all, self._world)
        return part

    def merged(self) -> StepOutput:
        """One output of all micro-batches of this rank; other keys are of the last."""
        parts = self._done
        if len(parts) == 1 and not self._items:
            return parts[0]
        result = StepOutput(parts[-1])
        names = dict.fromkeys(name for part in parts for name in part["log_vars"])
        log_vars = {name: self._mean(name, parts) for name in names}
        result["loss"] = self._loss([part["loss"] for part in parts])
        if "loss" in log_vars:
            log_vars["loss"] = self._loss([p["log_vars"]["loss"] for p in parts])
        result["log_vars"] = log_vars
        result["num_samples"] = sum(part["num_samples"] for part in parts)
        if self._items:
            result["num_items"] = self._mine
        return result

    def _loss(self, losses: list[Any]) -> Any:
        if not self._items:
            return _mean(losses, self._sizes)
        # a rank without items has no loss, which is no fault where others have some
        some = (self._all > 0).to(self._mine.dtype)
        whole = torch.where(self._mine > 0, self._mine, some)
        return sum(
            _weighed(loss, count, whole) for loss, count in zip(losses, self._items)
        )

    def _mean(self, name: str, parts: list[StepOutput]) -> Any:
        having = [
            (part["log_vars"][name], size)
            for part, size in zip(parts, self._sizes)
            if name in part["log_vars"]
        ]
        return _mean([value for value, _ in having], [size for _, size in having])


def _weighed(loss: Any, count: Tensor, whole: Tensor, times: int = 1) -> Any:
    """`loss * count * times / whole`; a mean over nothing, which is nan, is 0."""
    loss = torch.as_tensor(loss, device=count.device)
    wide = torch.promote_types(loss.dtype, torch.float32)
    return torch.where(count > 0, loss, 0.0) * ((count * times).to(wide) / whole)


def _mean(values: list[Any], sizes: list[int]) -> Any:
    total = sum(sizes)
    return sum(v * (size / total) for v, size in zip(values, sizes))
