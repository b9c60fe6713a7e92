"""Arguments of an evaluation hook, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from devrun.data.facts import data_facts
from devrun.dist import gather_objects
from devrun.errors import ConfigError, ConfigTypeError, DataError
from devrun.hooks.evaluation.loop import length_of
from devrun.ranks import require_same
from devrun.scopes import SCOPES
from devrun.text import cause_of

__all__ = ["check_schedule", "check_shares", "dataset_of", "judged", "keys_of"]


def check_schedule(start: Any, interval: Any, by_epoch: Any, keep: Any) -> None:
    for name, value, least in (
        ("start", start, 0),
        ("interval", interval, 1),
        ("max_keep_best", keep, 1),
    ):
        if name == "start" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError.of(
                name,
                f"of an evaluation must be an int of {least} or more, got {value!r}",
            )
    if not isinstance(by_epoch, bool):
        raise ConfigTypeError.of("by_epoch", f"must be True or False, got {by_epoch!r}")


def check_shares(loader: Any) -> None:
    """Refuse evaluation data that differ between the ranks, or give none of them any.

    Raises:
        ConfigError: names the ranks and what differs.
        DataError: with `drop_last`, no rank's share makes a batch.
    """
    facts = data_facts(loader)
    require_same({f"{name} of the evaluation data": v for name, v in facts.items()})
    if not any(batches != 0 for batches in gather_objects(length_of(loader))):
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
    if length_of(dataset) == 0:
        raise DataError(f"the evaluation set {type(dataset).__name__} has no samples")
    if length_of(dataloader) == 0:
        raise DataError(
            "the evaluation loader yields no batch: "
            f"{type(dataset).__name__} has {length_of(dataset)} samples and drop_last "
            "drops them"
        )
    return dataset


def keys_of(
    name: str, given: str | Sequence[str] | None, default: Sequence[str]
) -> tuple[str, ...]:
    if given is None:
        return tuple(default)
    keys = (given,) if isinstance(given, str) else given
    if not (isinstance(keys, (list, tuple)) and all(isinstance(k, str) for k in keys)):
        raise ConfigTypeError.of(
            name, f"must be a name or a list of names, got {given!r}"
        )
    return tuple(keys)


def judged(
    dataset: Any, results: Any, logger: Any, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """`dataset.evaluate`; what a package's data set refuses of a config is in one line.

    Raises:
        ConfigError: the options of the evaluation are not those of the data set.
    """
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
