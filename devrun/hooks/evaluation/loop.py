"""What an evaluation set must be, and one pass over it: means, or predictions of each.

Every sample, and every token that is not padding, counts once, whatever the batch sizes
and the number of ranks; nothing waits for the device before the end, except where
predictions are collected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from devrun.data.facts import data_facts
from devrun.data.prepared import ahead
from devrun.dist import gather_objects, get_dist_info, weighted_means
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    DataError,
    UnknownNameError,
    nearest,
)
from devrun.hooks.progress import over_evaluation
from devrun.log.buffer import LogBuffer
from devrun.metrics import BuiltMetric, MeanMetric, StatefulMetric, build_metrics
from devrun.ranks import require_same
from devrun.run import Run
from devrun.step import StepOutput

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
) -> dict[str, float]:
    """Mean of every log value over all samples of all ranks, and the metrics.

    The loss counts for what it is the mean over (`num_items`), where that is known.

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
    for outputs in ahead(steps, 1):  # read while the device works on the next
        if outputs.get("predictions") is None:
            raise ConfigError(
                "the data set has an `evaluate` method, which needs `predictions` from "
                "the model's evaluation step; it returned only "
                f"{', '.join(map(str, outputs))}: return them, or give test_fn"
            )
        mine.extend(per_sample(outputs["predictions"], outputs["num_samples"]))
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
        return list(zip(*(per_sample(entry, count) for entry in value)))
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


def check_set_names(sets: Mapping[str, Any], save_best: Any) -> None:
    """Refuse a `save_best` that names none of several evaluation sets."""
    if save_best in (None, "auto") or "" in sets:
        return
    name, slash, result = str(save_best).partition("/")
    if not slash or name not in sets:
        hint = nearest(str(save_best), [f"{known}/{result or name}" for known in sets])
        raise UnknownNameError.of(
            "save_best",
            f"must name one of the evaluation sets {', '.join(sets)} and its result, "
            f"got {save_best!r}; {hint}",
        )


def judges(dataset: Any) -> bool:
    """Whether it computes its results itself, by MMCV's `evaluate`."""
    return callable(getattr(dataset, "evaluate", None))


def check_shares(loader: Any) -> None:
    """Refuse evaluation data that differ between the ranks, or give none of them any.

    Raises:
        ConfigError: names the ranks and what differs.
        DataError: with `drop_last`, no rank's share makes a batch.
    """
    facts = data_facts(loader)
    require_same({f"{name} of the evaluation data": v for name, v in facts.items()})
    lengths = gather_objects(length_of(loader))
    if loader.in_step is not None and 0 in lengths and any(lengths):
        raise DataError(
            f"process {lengths.index(0)} has no sample of the evaluation set: where "
            "weights are divided, all that read it need at least one"
        )
    if not any(batches != 0 for batches in lengths):
        raise DataError(
            f"the evaluation loader yields no batch: {facts.get('samples')} samples "
            "over all processes, and drop_last drops them"
        )


def dataset_of(dataloader: Any) -> Any:
    """The data set of a loader that has one and yields something."""
    dataset = getattr(dataloader, "dataset", None)
    if dataset is None or not hasattr(dataloader, "__iter__"):
        raise ConfigTypeError(
            f"dataloader must be a torch DataLoader, got {type(dataloader).__name__}"
        )
    if length_of(dataloader) == 0:
        raise DataError(
            f"the evaluation loader yields no batch: {type(dataset).__name__} has "
            f"{length_of(dataset)} samples; check it and drop_last"
        )
    return dataset


def metrics_of(dataset: Any, kwargs: dict[str, Any], accepted: list[str]) -> list[Any]:
    """The metrics of an `evaluation`, whose other keys only a data set can take."""
    metric = kwargs.pop("metric", None)
    if kwargs:
        wrong = next(iter(kwargs))
        raise ConfigTypeError(
            f"evaluation got an unexpected {wrong!r}; "
            f"{nearest(wrong, ['metric', *accepted])} (only a data set with "
            f"`evaluate` takes others, {type(dataset).__name__} has none)",
            key=wrong,
        )
    metrics = build_metrics(metric)
    for one in metrics:
        if isinstance(one, StatefulMetric):
            one.attach(dataset)
    return metrics


def judged(
    dataset: Any, results: Any, logger: Any, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The named results, by `dataset.evaluate` or as a `test_fn` gave them.

    Raises:
        ConfigError: a `test_fn` gave something else.
    """
    if judges(dataset):
        found: Mapping[str, Any] = dataset.evaluate(results, logger=logger, **options)
        return found
    if isinstance(results, Mapping):
        return results
    raise ConfigError(
        f"test_fn gave {type(results).__name__}: return a dict of named "
        f"results, or give {type(dataset).__name__} an `evaluate`"
    )
