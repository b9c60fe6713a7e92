"""`LogBuffer`: what steps and hooks measured, averaged when something is logged."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from itertools import islice
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
    name, of which `window` are kept (`reserve` asks for more).

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
            if type(value) is not float:
                value = _checked(key, value)
            weight: Any = count
            if items is not None and key in items:
                weight = _checked("num_items", items[key])
            if key not in known:
                known[key] = _Series(self._window)
            known[key].new.append((value, count, weight))
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

    def means(self, n: int = 0) -> dict[str, float]:
        """The same means, without touching `output`."""
        found = self.totals(n).items()
        return {name: t / count if count else math.nan for name, (t, count) in found}

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
                    series.kept = deque(series.kept, maxlen=n)

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
        return {k: [entry[0] for entry in s.kept] for k, s in self._series.items()}

    @property
    def n_history(self) -> dict[str, list[int]]:
        """The counts of `val_history` (a copy)."""
        _settle(self._series)
        return {k: [entry[1] for entry in s.kept] for k, s in self._series.items()}


class _Series:
    """One name: totals since the start, and the last `window` values.

    An entry is a value, the samples that it stands for, and what it is the mean over.
    """

    __slots__ = ("kept", "new", "samples", "seen", "total", "weight")

    def __init__(self, window: int) -> None:
        self.new: list[tuple[Any, int, Any]] = []
        """Not in the totals yet; a value or a weight may be a tensor."""
        self.kept: deque[tuple[float, int, float]] = deque(maxlen=window)
        self.total, self.weight, self.samples, self.seen = 0.0, 0.0, 0, 0

    def add(self, value: float, count: int, weight: float) -> None:
        self.kept.append((value, count, weight))
        self.total += value * weight if weight else 0.0  # a mean over nothing is nan
        self.weight += weight
        self.samples += count
        self.seen += 1

    def last(self, n: int) -> Iterable[tuple[float, int, float]]:
        return islice(self.kept, len(self.kept) - n, None)

    def totals(self, key: str, n: int) -> tuple[float, float]:
        if n <= 0 or n >= self.seen:
            return self.total, self.weight
        if n > len(self.kept):
            raise ConfigError(
                f"average({n}) of {key!r}: only the last {len(self.kept)} values are "
                f"kept; call log_buffer.reserve({n}) before the run, or average(0)"
            )
        entries = list(self.last(n))
        total = sum(value * weight for value, _, weight in entries if weight)
        return float(total), sum(weight for _, _, weight in entries)

    def mean_count(self, n: int) -> float:
        if n <= 0 or n >= self.seen:
            return self.samples / self.seen
        return sum(count for _, count, _ in self.last(n)) / n


def _settle(section: Mapping[str, _Series]) -> None:
    """Bring the totals up to date; the host waits for the device here."""
    entries = [entry for series in section.values() for entry in series.new]
    read = iter(_to_host([part for entry in entries for part in entry[::2]]))
    for series in section.values():
        for _, count, _ in series.new:
            series.add(next(read), count, next(read))
        series.new.clear()


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


def _to_host(parts: list[Any]) -> list[float]:
    """`parts` with its 0-d tensors as floats, by one transfer for each kind of them."""
    kinds: dict[Any, list[int]] = {}
    for index, part in enumerate(parts):
        if not isinstance(part, (int, float)):
            kinds.setdefault((part.device, part.dtype), []).append(index)
    if kinds:
        import torch

        for places in kinds.values():
            read = torch.stack([parts[index] for index in places])
            # a tensor of a plug-in's own class may have no tolist
            for index, number in zip(places, read.cpu().tolist()):
                parts[index] = float(number)
    return parts
