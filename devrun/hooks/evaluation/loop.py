"""One pass over an evaluation set: means over all of it, or predictions of each sample.

Every sample, and every token that is not padding, counts once, whatever the batch sizes
and the number of ranks; nothing waits for the device before the end, except where
predictions are collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from devrun.dist import gather_objects, get_dist_info, weighted_means
from devrun.errors import ConfigError, DataError
from devrun.hooks.progress import over_evaluation
from devrun.log.buffer import LogBuffer
from devrun.metrics import MeanMetric, StatefulMetric
from devrun.run import Run
from devrun.step import StepOutput

if TYPE_CHECKING:
    from devrun.metrics import BuiltMetric

_METRIC = "\0metric\0"  # keeps a metric apart from a log value of the same name


class Steps:
    """The outputs of `runner.eval_step` over a loader; `batches` counts them."""

    def __init__(self, runner: Run, dataloader: Any, mode: str = "val") -> None:
        self._runner = runner
        self._mode = mode
        self._dataloader = dataloader
        self.batches = 0

    def __iter__(self) -> Iterator[StepOutput]:
        loader = self._runner.prepare_eval_loader(self._dataloader)
        for batch in over_evaluation(self._runner, loader):
            outputs = self._runner.eval_step(batch, self._mode)
            self.batches += 1
            if self._runner.adapter.data_share[2]:
                yield outputs


def evaluate_means(
    steps: Iterable[StepOutput],
    metrics: Sequence[BuiltMetric] = (),
    check: Callable[[set[str]], None] | None = None,
) -> dict[str, float]:
    """Mean of every log value over all samples of all ranks, and the metrics.

    The loss counts for what it is the mean over (`num_items`), where that is known.

    Args:
        check: given the names of the results after the first step, to refuse them
            before the time for a whole evaluation is spent.

    Raises:
        DataError: no rank had a batch.
    """
    buffer = LogBuffer()
    means = [metric for metric in metrics if isinstance(metric, MeanMetric)]
    stateful = [metric for metric in metrics if isinstance(metric, StatefulMetric)]
    for state in stateful:
        state.reset()
    samples = 0
    for outputs in steps:
        samples += outputs["num_samples"]
        values = dict(outputs.get("log_vars") or {})
        if outputs.get("loss") is not None:
            values.setdefault("loss", outputs["loss"])
        if check is not None:
            check({*values, *(metric.name for metric in metrics)})
            check = None
        items = {"loss": outputs["num_items"]} if "num_items" in outputs else {}
        for metric in means:
            key = _METRIC + metric.name
            values[key] = value = metric.batch(outputs)
            if isinstance(value, tuple):
                values[key], items[key] = value
        if values:
            buffer.update(values, outputs["num_samples"], items)
        for state in stateful:
            state.update(outputs)
    found = weighted_means(buffer.totals())
    if not found and not any(gather_objects(samples)):
        raise DataError("the evaluation set yielded no batch; check it and drop_last")
    results = {k: v for k, v in found.items() if not k.startswith(_METRIC)}
    for metric in means:
        results[metric.name] = metric.value(found[_METRIC + metric.name])
    for state in stateful:
        results.update(state.compute())
    return results


def collect_predictions(
    steps: Iterable[StepOutput], size: int | None
) -> list[Any] | None:
    """The prediction of each sample in the order of the data set; None off rank 0.

    Tensors become numpy arrays, as MMCV's data sets expect them in `evaluate`.

    Args:
        size: samples in the data set, if it is known.

    Raises:
        ConfigError: the model returned no `predictions`.
        DataError: no rank had a batch.
    """
    mine: list[Any] = []
    waiting: tuple[Any, int] | None = None
    for outputs in steps:
        if outputs.get("predictions") is None:
            raise ConfigError(
                "the data set has an `evaluate` method, which needs `predictions` from "
                "the model's evaluation step; it returned only "
                f"{', '.join(map(str, outputs))}: return them, or give test_fn"
            )
        if waiting is not None:  # read one step late, while the device works on this
            mine.extend(per_sample(*waiting))
        waiting = outputs["predictions"], outputs["num_samples"]
    if waiting is not None:
        mine.extend(per_sample(*waiting))
    parts = gather_objects(mine)
    if get_dist_info()[0] != 0:
        return None
    if not any(parts):
        raise DataError("the evaluation set yielded no batch; check it and drop_last")
    return _in_order(parts, size)


def _in_order(parts: list[list[Any]], size: int | None) -> list[Any]:
    """Undo `indices[rank::world]`; what a sampler padded is cut off."""
    if len(parts) > 1 and size is not None and len(parts[0]) == size > 1:
        return parts[0]  # a loader of the user's own, which gave all to every rank
    longest = max(len(part) for part in parts)
    merged = [part[i] for i in range(longest) for part in parts if i < len(part)]
    return merged if size is None else merged[:size]


def per_sample(value: Any, count: int) -> list[Any]:
    """A batch of predictions as a list with one entry for each sample."""
    if hasattr(value, "detach"):
        host = value.detach().cpu()
        if str(host.dtype) == "torch.bfloat16":  # numpy has no such type
            host = host.float()
        value = list(host.numpy())
    elif isinstance(value, dict):
        columns = {key: per_sample(entry, count) for key, entry in value.items()}
        return [{key: columns[key][i] for key in columns} for i in range(count)]
    elif isinstance(value, tuple):
        return list(zip(*(per_sample(entry, count) for entry in value), strict=True))
    elif not isinstance(value, list) and hasattr(value, "__len__"):
        value = list(value)
    if not isinstance(value, list) or len(value) != count:
        got = (
            f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
        )
        raise ConfigError(
            f"predictions must have one entry for each of the {count} samples of a "
            f"batch, got {got}"
        )
    return value


def length_of(collection: Any) -> int | None:
    """`len(collection)`, or None where it has no length."""
    try:
        return len(collection)
    except (TypeError, NotImplementedError):
        return None
