"""Arguments of an evaluation hook, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from devrun.blame import cause_of
from devrun.data.facts import data_facts
from devrun.dist import gather_objects
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    DataError,
    UnknownNameError,
    nearest,
)
from devrun.hooks.evaluation.loop import length_of
from devrun.metrics import StatefulMetric, build_metrics
from devrun.ranks import require_same
from devrun.scopes import SCOPES


def check_set_names(sets: Mapping[str, Any], save_best: Any) -> None:
    """Refuse a `save_best` that names none of several evaluation sets."""
    if not sets:
        raise ConfigError("the evaluation has no data set")
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

    What a package's data set refuses of a config is in one line.

    Raises:
        ConfigError: the options of the evaluation are not those of the data set.
    """
    if not judges(dataset):
        if isinstance(results, Mapping):
            return results
        raise ConfigError(
            f"test_fn gave {type(results).__name__}: return a dict of named "
            f"results, or give {type(dataset).__name__} an `evaluate`"
        )
    try:
        found: Mapping[str, Any] = dataset.evaluate(results, logger=logger, **options)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        if type(dataset).__module__.partition(".")[0] not in SCOPES:
            raise  # the user's own code, whose traceback tells more
        raise ConfigError(
            f"evaluate of {type(dataset).__name__} failed: {cause_of(error)}; the "
            f"evaluation gives it {', '.join(options) or 'no arguments'}"
        ) from error
    return found
