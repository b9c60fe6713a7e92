"""`LogBuffer`: what steps and hooks measured, averaged when something is logged."""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Mapping
from operator import mul
from typing import Any

from devrun.errors import ConfigError, ConfigTypeError

WINDOW = 1000
PENDING = 2048
"""Updates held back; then they are read even if nothing is logged, so that an endless
run stays small."""


class LogBuffer:
    """Named numbers of the last iterations and their mean weighted by count.

    `update` is on the path of every iteration: it notes what it is given, and a tensor
    on a device is read when `average` moves all that wait to the host in one transfer
    (one in host memory is read at once: nothing waits for it). `average(0)` covers
    everything since `clear`, however long; `average(n)` the last n values of each
    name, of which at least `window` are kept (`reserve` asks for more).

    Values go to the section chosen by `select`; one is enough unless training and
    validation alternate within an epoch.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self.output: OrderedDict[str, Any] = OrderedDict()
        self.latest: dict[str, float] = {}
        """The last averages; they stay when `output` is cleared."""
        self.ready = False
        self.tag: Any = None
        """What the averages in `output` are of; None when it holds none."""
        self._window = window
        self._updates = 0
        self._sections: dict[str, dict[str, _Series]] = {}
        self.select("train")

    def update(
        self,
        vars: Mapping[str, Any],
        count: int = 1,
        items: Mapping[str, Any] | None = None,
    ) -> None:
        """Note one value for each name, standing for `count` samples.

        `items` says of some names what their value is the mean over instead, as a
        number of 0 or more or a 0-d tensor; a mean over nothing counts for nothing.
        A tensor must not be written to afterwards.

        Raises:
            ConfigTypeError: (a TypeError) a value that is no number and no 0-d tensor,
                or `vars` is no dict.
            ConfigError: `count` is below 1.
        """
        try:
            given = vars.items()
        except AttributeError:
            raise ConfigTypeError(
                "log values must be a dict of name -> number, got "
                f"{type(vars).__name__}"
            ) from None
        if count < 1:
            raise ConfigError(
                f"count (num_samples) of the log values {list(vars)} is {count}; it "
                "must be at least 1"
            )
        known = self._series
        for key, value in given:
            try:
                series = known[key]
            except KeyError:
                series = known[key] = _Series(self._window)
            if type(value) is not float:
                value = series.readable(key, value)
            series.values.append(value)
            series.counts.append(count)
        if items is not None:
            for key, number in items.items():
                if key in vars:
                    known[key].weigh(number)
        self._updates += 1
        if self._updates % PENDING == 0:
            _settle(self._series)

    def average(self, n: int = 0) -> None:
        """Put the means of the last `n` values (0: all) of each name in `output`.

        Nothing happens when there are no values.

        Raises:
            ConfigError: more values are asked for than were kept.
        """
        if means := self.means(n):
            self.show(means, tag=n)

    def means(self, n: int = 0, section: str | None = None) -> dict[str, float]:
        """The same means, without touching `output`."""
        totals = self.totals(n, section)
        return {key: mean_of(total, count) for key, (total, count) in totals.items()}

    def show(self, means: Mapping[str, float], tag: Any) -> None:
        """Add averages to `output`; it is ready to be logged."""
        self.output.update(means)
        self.latest = dict(means)
        self.ready = True
        self.tag = tag

    def mean_count(self, n: int = 0) -> float:
        """Samples of one update: the largest mean count of any name."""
        _settle(self._series)
        return max((s.mean_count(n) for s in self._series.values()), default=0.0)

    def totals(
        self, n: int = 0, section: str | None = None
    ) -> dict[str, tuple[float, float]]:
        """Weighted sum and count of the last `n` values (0: all) of each name.

        Raises:
            ConfigError: more values are asked for than were kept.
        """
        chosen = self._series if section is None else self._sections.get(section, {})
        _settle(chosen)
        return {key: series.totals(key, n) for key, series in chosen.items()}

    def select(self, section: str) -> None:
        """Take the following updates into `section` (`train` at first)."""
        self._series = self._sections.setdefault(section, {})

    def reserve(self, n: int) -> None:
        """Keep at least the last `n` values of each name."""
        if n > self._window:
            self._window = n
            for section in self._sections.values():
                for series in section.values():
                    series.window = n

    def clear(self) -> None:
        """Forget all values and the output."""
        for section in self._sections.values():
            section.clear()
        self.latest = {}
        self.clear_output()

    def clear_section(self, section: str) -> None:
        """Forget the values of one section."""
        self._sections.get(section, {}).clear()

    def clear_output(self) -> None:
        """Empty `output`; it is not ready any more."""
        self.output.clear()
        self.ready = False
        self.tag = None

    @property
    def val_history(self) -> dict[str, list[float]]:
        """The values kept of each name, oldest first (a copy)."""
        _settle(self._series)
        return {k: s.values[-s.window :].tolist() for k, s in self._series.items()}

    @property
    def n_history(self) -> dict[str, list[int]]:
        """The counts of `val_history` (a copy)."""
        _settle(self._series)
        return {k: s.counts[-s.window :].tolist() for k, s in self._series.items()}


class _Series:
    """One name: totals since the start, and at least the last `window` values."""

    __slots__ = (
        "counts", "samples", "seen", "settled", "total", "unread", "values", "weight",
        "weights", "window",
    )  # fmt: skip

    def __init__(self, window: int) -> None:
        self.window = window
        # arrays hold the bare numbers, close together
        self.values = array("d")
        self.counts = array("q")
        self.weights: array[Any] = self.counts
        """What each value is the mean over; the counts, unless `weigh` set another."""
        self.settled = 0  # how many of `values` are in the totals
        self.total, self.weight, self.samples, self.seen = 0.0, 0, 0, 0
        # tensors, and where they belong
        self.unread: list[tuple[array[Any], int, Any]] = []

    def readable(self, key: str, value: Any) -> float:
        """The next value as a float: for now nan, if the host would have to wait."""
        checked = _checked(key, value)
        if type(checked) is float:
            return checked
        self.unread.append((self.values, len(self.values), checked))
        return math.nan

    def weigh(self, number: Any) -> None:
        """Say what the newest value is the mean over."""
        if self.weights is self.counts:
            self.weights = array("d", self.counts)
        self._keep_up()
        weight = _checked("num_items", number)
        if type(weight) is not float:
            self.unread.append((self.weights, len(self.weights) - 1, weight))
            weight = math.nan
        self.weights[-1] = weight

    def settle(self) -> None:
        """Add the new values to the totals, and let old ones go."""
        self.unread.clear()
        self._keep_up()
        values, weights = self.values[self.settled :], self.weights[self.settled :]
        self.total += _weighted_sum(values, weights)
        self.weight += sum(weights)
        self.samples += sum(self.counts[self.settled :])
        self.seen += len(values)
        if len(self.values) > 2 * self.window:  # seldom: it moves all that is kept
            del self.values[: -self.window], self.counts[: -self.window]
            if self.weights is not self.counts:
                del self.weights[: -self.window]
        self.settled = len(self.values)

    def _keep_up(self) -> None:
        """The weights of values without any are their counts."""
        if self.weights is not self.counts:
            self.weights.extend(array("d", self.counts[len(self.weights) :]))

    def totals(self, key: str, n: int) -> tuple[float, float]:
        if n <= 0 or n >= self.seen:
            return self.total, self.weight
        kept = min(len(self.values), self.window)
        if n > kept:
            raise ConfigError(
                f"average({n}) of {key!r}: only the last {kept} values are "
                f"kept; call log_buffer.reserve({n}) before the run, or average(0)"
            )
        weights = self.weights[-n:]
        return _weighted_sum(self.values[-n:], weights), sum(weights)

    def mean_count(self, n: int) -> float:
        if n <= 0 or n >= self.seen:
            return self.samples / self.seen
        counts = self.counts[-n:]
        return sum(counts) / len(counts)


def _settle(section: Mapping[str, _Series]) -> None:
    """Bring the totals up to date; the host waits for the device here."""
    unread = [entry for series in section.values() for entry in series.unread]
    if unread:
        numbers = _to_host([tensor for _, _, tensor in unread])
        for (values, index, _), number in zip(unread, numbers, strict=True):
            values[index] = number
    for series in section.values():
        series.settle()


def mean_of(total: float, count: float) -> float:
    """Their quotient; nan where nothing was counted."""
    return total / count if count else math.nan


def _weighted_sum(values: array[Any], weights: array[Any]) -> float:
    if weights.typecode == "q":  # counts, which are 1 or more
        return float(sum(map(mul, values, weights)))
    # a mean over nothing is nan
    return float(sum(v * w for v, w in zip(values, weights, strict=True) if w))


def _checked(key: str, value: Any) -> Any:
    """`value` as a float, or the tensor to read later.

    Tensors are recognised by their methods, so that this module does not import torch.
    """
    if hasattr(value, "detach"):
        if value.dim() or value.is_complex():
            raise ConfigTypeError(
                f"log value {key!r} is a tensor of shape {list(value.shape)} and type "
                f"{value.dtype}; log one real number, such as its mean()"
            )
        if value.is_cpu:
            return float(value.tolist())
        if value.requires_grad:
            value = value.detach()
        # One that was written in place before may be again: keep its value of now.
        return value.clone() if not value.is_inference() and value._version else value
    try:
        shape = getattr(value, "shape", None)  # of a numpy array; () for its scalars
        if not isinstance(value, (str, bytes, complex)) and not shape:
            return float(value)
        raise TypeError
    except (TypeError, ValueError):
        raise ConfigTypeError(
            f"log value {key!r} must be a number or a 0-d tensor, got "
            f"{type(value).__name__}"
        ) from None


def _to_host(tensors: list[Any]) -> list[float]:
    """The numbers in 0-d tensors, with one transfer for each device."""
    import torch

    if len({(tensor.dtype, tensor.device) for tensor in tensors}) == 1:
        return list(map(float, torch.stack(tensors).tolist()))
    groups: dict[Any, dict[Any, list[int]]] = {}
    for index, tensor in enumerate(tensors):
        by_type = groups.setdefault(tensor.device, {})
        by_type.setdefault(tensor.dtype, []).append(index)
    found: list[float] = [0.0] * len(tensors)
    for by_type in groups.values():
        # Several types travel together as bytes; the widest first keeps each aligned.
        order = sorted(by_type, key=lambda dtype: dtype.itemsize, reverse=True)
        stacks = [torch.stack([tensors[i] for i in by_type[dtype]]) for dtype in order]
        if len(stacks) == 1:
            hosts = [stacks[0].cpu()]
        else:
            packed = torch.cat([stack.view(torch.uint8) for stack in stacks]).cpu()
            sizes = [stack.numel() * stack.element_size() for stack in stacks]
            parts = packed.split(sizes)
            hosts = [p.view(d) for p, d in zip(parts, order, strict=True)]
        for dtype, host in zip(order, hosts, strict=True):
            for index, number in zip(by_type[dtype], host.tolist(), strict=True):
                found[index] = float(number)
    return found
