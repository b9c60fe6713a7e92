"""What a run costs, energy and money, and how many times less than another run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from devrun.errors import ConfigError


@dataclass(frozen=True)
class Rates:
    """What the machine of a run draws and costs; None where nobody said it."""

    watts: float | None = None
    price: float | None = None
    """Of an hour of the machine, in any currency."""


class Cost(NamedTuple):
    """What something takes; None where that is not known."""

    seconds: float | None = None
    joules: float | None = None
    money: float | None = None


def cost(seconds: float | None, rates: Rates, joules: float | None = None) -> Cost:
    """Of `seconds` of a machine, by the `joules` that were measured, if they were."""
    if seconds is None:
        return Cost()
    if joules is None and rates.watts is not None:
        joules = seconds * rates.watts
    money = None if rates.price is None else seconds / 3600 * rates.price
    return Cost(seconds, joules, money)


def ratio(first: Cost, other: Cost) -> Cost:
    """How many times as much `first` takes as `other`: time, energy and money."""
    pairs = zip(first, other)
    return Cost(*(a / b if a is not None and b else None for a, b in pairs))


def rates_of(count: int, **given: list[float] | None) -> list[Rates]:
    """Of `count` runs, by values such as `watts=[400, 650]`: one, or one a run.

    Raises:
        ConfigError: too few or too many.
    """
    columns: dict[str, Sequence[float | None]] = {}
    for name, values in given.items():
        row: Sequence[float | None] = values or [None]
        if len(row) not in (1, count):
            raise ConfigError(
                f"--{name} has {len(row)} numbers for {count} runs; give one, or one "
                "a run"
            )
        columns[name] = [*row] * (count // len(row))
    return [Rates(**dict(zip(columns, row))) for row in zip(*columns.values())]
