"""What a run costs, energy and money, and how many times less than another run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from devrun.errors import ConfigError


@dataclass(frozen=True)
class Rates:
    """What the machine of a run draws and costs; None where nobody said it."""

    watts: float | None = None
    price: float | None = None
    """Of an hour of the machine, in any currency."""
    energy_price: float | None = None
    """Of a kWh, in the same."""
    tokens: float | None = None
    """Of a sample."""


@dataclass(frozen=True)
class Cost:
    """What something takes; None where that is not known."""

    seconds: float | None = None
    joules: float | None = None
    money: float | None = None

    def __truediv__(self, count: float | None) -> Cost:
        """Of one of `count`."""
        if not count:
            return Cost()
        return Cost(*(None if v is None else v / count for v in asdict(self).values()))

    def __rmul__(self, count: float) -> Cost:
        return self / (1 / count)


def cost(seconds: float | None, rates: Rates, joules: float | None = None) -> Cost:
    """Of `seconds` of a machine, by the `joules` that were measured, if they were."""
    if seconds is None or not math.isfinite(seconds):
        return Cost()
    if joules is None and rates.watts is not None:
        joules = seconds * rates.watts
    parts = []
    if rates.price is not None:
        parts.append(seconds / 3600 * rates.price)
    if rates.energy_price is not None and joules is not None:
        parts.append(joules / 3.6e6 * rates.energy_price)
    known = [
        None if v is None or not math.isfinite(v) else v for v in (joules, sum(parts))
    ]
    return Cost(seconds, known[0], known[1] if parts else None)


def ratio(first: Cost, other: Cost) -> Cost:
    """How many times as much `first` takes as `other`: time, energy and money."""
    pairs = zip(asdict(first).values(), asdict(other).values())
    return Cost(*(a / b if a is not None and b else None for a, b in pairs))


def rates_of(count: int, **given: str | None) -> list[Rates]:
    """Of `count` runs, by flags such as `watts="400,650"`: one value, or one a run.

    Raises:
        ConfigError: other values than numbers from 0 on, or too few or many.
    """
    columns: dict[str, Sequence[float | None]] = {}
    for name, text in given.items():
        columns[name] = [None] * count if text is None else _numbers(name, text, count)
    return [Rates(**dict(zip(columns, row))) for row in zip(*columns.values())]


def _numbers(name: str, text: str, count: int) -> list[float]:
    flag = f"--{name.replace('_', '-')}"
    try:
        values = [float(word) for word in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(0 <= value < math.inf for value in values):
        raise ConfigError(f"{flag} must be a number from 0 on, got {text}")
    if len(values) not in (1, count):
        raise ConfigError(
            f"{flag} has {len(values)} numbers for {count} runs; give one, or one a run"
        )
    return values * (count // len(values))


def target_of(text: str | None) -> tuple[str, float] | None:
    """Metric and value of `METRIC=VALUE`."""
    if text is None:
        return None
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ConfigError(
            f"--target must be METRIC=VALUE such as accuracy=0.9, got {text!r}"
        ) from None


def columns_of(costs: dict[str, Cost], target: str) -> dict[str, Any]:
    """Titles and values for a table."""
    named = {
        "": costs["whole"], f" to {target}": costs["to_target"],
        "/sample": costs["per_sample"], "/Mtokens": costs["per_million_tokens"],
        " ratio": costs.get("ratio", Cost()),
    }  # fmt: skip
    return {
        f"{unit}{title}": value
        for title, cost in named.items()
        for unit, value in zip(("seconds", "J", "money"), asdict(cost).values())
        if value is not None and (unit, title) != ("seconds", "/sample")
    }
