"""Arguments of schedules, checked when a hook is made: one line says what is wrong.

Also the two curves that an argument can name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from numbers import Real
from typing import Any

from devrun.config.numbers import whole_number
from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError, nearest


def annealing_cos(
    start: float, end: float, factor: float, weight: float = 1.0
) -> float:
    """From `weight * start + (1 - weight) * end` to `end` along half a cosine.

    `factor` goes from 0 to 1. SGDR, https://arxiv.org/abs/1608.03983, equation 5.
    """
    return end + 0.5 * weight * (start - end) * (1.0 + math.cos(math.pi * factor))


def annealing_linear(start: float, end: float, factor: float) -> float:
    """From `start` to `end` in a straight line, as `factor` goes from 0 to 1."""
    return start + (end - start) * factor


ANNEALING: dict[Any, Callable[[float, float, float], float]] = {
    "cos": annealing_cos,
    "linear": annealing_linear,
}


def exactly_one(name: str, value: float | None, ratio: float | None) -> None:
    """Refuse both or neither of `name` and `name`_ratio."""
    if (value is None) == (ratio is None):
        given = "neither" if value is None else f"{value!r} and {ratio!r}"
        raise ConfigError(
            f"give exactly one of {name} and {name}_ratio, got {given}",
            key=f"{name}_ratio",
        )


def step_argument(step: Any) -> int | tuple[int, ...]:
    """A period, or milestones in ascending order."""
    if isinstance(step, (list, tuple)):
        name = "each milestone in step"
        return tuple(sorted(whole_number(name, each, key="step") for each in step))
    if not isinstance(step, int) or isinstance(step, bool):
        raise ConfigTypeError.of(
            "step", f"must be an int or a list of ints, got {step!r}"
        )
    return whole_number("step", step)


def fraction(name: str, value: Any) -> float:
    """A float from 0 to 1; an int is refused, as it is mostly a count by mistake."""
    if not isinstance(value, float) or not 0.0 <= value <= 1.0:
        raise ConfigError.of(name, f"must be a float from 0.0 to 1.0, got {value!r}")
    return value


def annealing(name: Any) -> Callable[[float, float, float], float]:
    """The function that `anneal_strategy` names."""
    if not isinstance(name, str) or name not in ANNEALING:
        raise ConfigError.of(
            "anneal_strategy", f"must be 'cos' or 'linear', got {name!r}"
        )
    return ANNEALING[name]


def numbers(name: str, value: Any) -> None:
    """Refuse what is no number and no list or dict of them."""
    if isinstance(value, bool) or not isinstance(value, (Real, list, tuple, Mapping)):
        raise ConfigError.of(name, f"must be a number, list or dict, got {value!r}")


def iterations_only(by_epoch: Any) -> None:
    """Refuse `by_epoch=True` for a cycle, which is counted in iterations."""
    if by_epoch:
        raise ConfigError(
            f"this policy needs by_epoch=False, got {by_epoch!r}", key="by_epoch"
        )


def cyclic_ratios(target_ratio: Any) -> tuple[float, float]:
    """(peak, end) as multiples of the base; one number `r` stands for (r, r / 1e5)."""
    wrong = ConfigError.of(
        "target_ratio", f"must be a number or a pair of numbers, got {target_ratio!r}"
    )
    if isinstance(target_ratio, (list, tuple)):
        values = list(target_ratio)
    else:
        values = [target_ratio]
    if not all(isinstance(v, Real) and not isinstance(v, bool) for v in values):
        raise wrong
    if len(values) == 1:
        values.append(values[0] / 1e5)
    if len(values) != 2:
        raise wrong
    return values[0], values[1]


def restart_bounds(periods: Any, weights: Any) -> tuple[int, ...]:
    """Where each restart period ends; `periods` and `weights` must pair up."""
    for name, value in (("periods", periods), ("restart_weights", weights)):
        if not isinstance(value, (list, tuple)) or not value:
            raise ConfigError.of(name, f"must be a list of numbers, got {value!r}")
    if len(periods) != len(weights):
        raise ConfigError(
            f"periods and restart_weights must have the same length, got "
            f"{len(periods)} and {len(weights)}",
            key="restart_weights",
        )
    name = "each of periods"
    return tuple(
        accumulate(whole_number(name, each, key="periods") for each in periods)
    )


def format_param(
    name: str, optimizer: Any, param: float | Sequence[float] | Mapping[str, Any]
) -> list[float]:
    """`param` as one value for each group of the optimizer called `name`.

    Raises:
        ConfigError: (a ValueError) a list whose length is not the number of groups.
        UnknownNameError: (a KeyError) a dict without `name`.
    """
    if isinstance(param, Mapping):
        if name not in param:
            hint = nearest(name, param)
            raise UnknownNameError(f"no value for the optimizer {name!r}; {hint}")
        param = param[name]
    groups = optimizer.param_groups
    if isinstance(param, (list, tuple)):
        if len(param) != len(groups):
            raise ConfigError(
                f"{len(groups)} values are needed, one for each parameter group of "
                f"{type(optimizer).__name__}, got {len(param)}"
            )
        return list(param)
    return [param] * len(groups)  # type: ignore[list-item]  # only a number is left
