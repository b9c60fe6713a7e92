"""`self.log` of a LightningModule, and what becomes of the values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from devrun.devices.frozen import captured
from devrun.dist import weighted_means
from devrun.errors import ConfigTypeError, UnsupportedFeatureError


class ModelLog:
    """Takes what the model logs, for whoever called the model."""

    def __init__(self) -> None:
        self.training = True
        """Whether it is the training that logs."""
        self.batch_size: int | None = None
        """What the step in progress gave as one."""
        self.metrics: dict[str, Any] = {}
        """Objects of torchmetrics, by the name they are logged under."""
        self._taken: dict[str, Any] = {}
        self._of_epoch: set[str] = set()
        """Values of training_step whose mean over the epoch is logged."""
        self._with_step: set[str] = set()
        """Those of them that are logged for each step too."""
        self._sums: dict[str, list[Any]] = {}
        """Of the epoch in progress, by name: weighted sum and weight."""

    @contextlib.contextmanager
    def taking(self) -> Iterator[dict[str, Any]]:
        """The values that are logged inside."""
        before, self._taken, self.batch_size = self._taken, {}, None
        try:
            yield self._taken
        finally:
            self._taken = before

    def log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Lightning's `self.log`; see its arguments there.

        In training a value is averaged over the interval of the logger; with
        `on_epoch` its mean over the epoch is logged too, as `NAME_epoch`, or as `NAME`
        with `on_step=False`. In validation its mean over all samples is a result of the
        evaluation. Means are always those of all ranks.
        """
        if getattr(reduce_fx, "__name__", reduce_fx) != "mean":
            raise UnsupportedFeatureError(
                f"self.log({name!r}, reduce_fx={reduce_fx!r}): only 'mean' is taken; "
                "log a torchmetrics object such as MaxMetric for another"
            )
        if batch_size is not None:
            self.batch_size = batch_size
        if callable(getattr(value, "compute", None)) and hasattr(value, "reset"):
            self._take_metric(name, value)
            return
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise ConfigTypeError(
                    f"self.log({name!r}): one number is needed, got a tensor of the "
                    f"shape {tuple(value.shape)}; log its mean()"
                )
            value = value.detach().reshape(())
        self._taken[name] = value
        if self.training and on_epoch:
            self._of_epoch.add(name)
            if on_step or on_step is None:
                self._with_step.add(name)

    def _take_metric(self, name: str, metric: Any) -> None:
        if captured():
            raise UnsupportedFeatureError(
                f"self.log({name!r}) of a {type(metric).__name__}: this device runs "
                "the step as a compiled graph, in which such an object keeps no state; "
                "log a mean, or give `ipu: {evaluate_on: host}` for validation_step"
            )
        self.metrics[name] = metric

    def computed(self) -> dict[str, float]:
        """The values of the metrics that were logged, which begin anew."""
        found = {name: float(one.compute()) for name, one in self.metrics.items()}
        for metric in self.metrics.values():
            metric.reset()
        self.metrics.clear()
        return found

    def add(self, outputs: Mapping[str, Any]) -> None:
        """Count what an update logged towards the means over its epoch."""
        for name in self._of_epoch & outputs["log_vars"].keys():
            total = self._sums.setdefault(name, [0.0, 0])
            total[0] += outputs["log_vars"][name] * outputs["num_samples"]
            total[1] += outputs["num_samples"]

    def means(self) -> dict[str, float]:
        """The means over the epoch, under the names that Lightning gives them."""
        sums = {n: (float(s), w) for n, (s, w) in sorted(self._sums.items())}
        self._sums.clear()
        return {
            f"{name}_epoch" if name in self._with_step else name: mean
            for name, mean in weighted_means(sums).items()
        }

    def state_dict(self) -> dict[str, Any]:
        """The sums of the epoch in progress; empty between two."""
        sums = {name: [float(s), w] for name, (s, w) in self._sums.items()}
        return {"sums": sums, "with_step": sorted(self._with_step)} if sums else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._sums = {name: list(pair) for name, pair in state["sums"].items()}
        self._with_step = set(state["with_step"])
