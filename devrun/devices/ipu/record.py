"""Outputs of layers on the IPU beside those on the host: MMCV's `modules_to_record`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from devrun.data import rng
from devrun.devices.ipu.batch import Flat, rebuild
from devrun.devices.ipu.options import micro_batches
from devrun.errors import ConfigError
from devrun.models.split import layers_of
from devrun.models.step_module import StepModule

RTOL, ATOL = 1e-3, 1e-5
"""MMCV's."""
Outputs = dict[str, Tensor]

logger = logging.getLogger("devrun")


class Recorder:
    """Runs each update's forward pass on the host too, and logs what differs.

    Args:
        given: names of layers of `model`, or their indices in `named_modules()`.
        options: of training, with one micro-batch for each update.

    Raises:
        ConfigError: a layer that is not there, or what makes the two incomparable.
    """

    def __init__(
        self, given: Sequence[Any], model: nn.Module, options: Any, precision: str
    ) -> None:
        self._names = [name for name, _ in layers_of(model, given, "modules_to_record")]
        self._host: Outputs = {}
        if (parts := micro_batches(options)) > 1 or precision != "fp32":
            given_now = f"{parts} micro-batches" if parts > 1 else precision
            raise ConfigError.of(
                "modules_to_record",
                f"compares one micro-batch in fp32, not {given_now}: "
                "leave out accumulation, replicas, deviceIterations and fp16 for it",
            )

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[Outputs]:
        """What the layers of `model` return in one forward pass, filled in on the way.

        Raises:
            ConfigError: one is not called.
        """
        found: Outputs = {}
        layers = dict(model.named_modules(remove_duplicate=False))
        handles = [
            layers[name].register_forward_hook(_Keep(name, found))
            for name in self._names
        ]
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()
        called = {name.partition("#")[0] for name in found}
        if missing := [name for name in self._names if name not in called]:
            raise ConfigError(
                f"modules_to_record names {missing[0]!r}, which the forward pass never "
                "calls: name a layer that it calls"
            )

    def run_on_host(self, step: StepModule, flat: Flat) -> None:
        """Keep what they return on the host, whose weights stay as they are."""
        twin = copy.deepcopy(step, {id(step.optimizer): step.optimizer})
        with (
            rng.preserved(),
            torch.no_grad(),
            self.watching(twin.module) as found,
        ):
            twin(rebuild(flat.template, flat.tensors), "train")
        self._host = found

    def compare(self, names: Sequence[str], outputs: Sequence[Tensor]) -> None:
        """Log what differs on the device, or that nothing does.

        Args:
            outputs: of the device; the last ones are those of `names`.
        """
        same = True
        for name, mine in zip(names, outputs[len(outputs) - len(names) :], strict=True):
            a, b = mine.float(), self._host[name].float()
            wrong = ~torch.isclose(a, b, rtol=RTOL, atol=ATOL, equal_nan=True)
            if wrong.any():
                same = False
                logger.warning(
                    "modules_to_record: %s differs from the host in %d of %d values, "
                    "by %.3g at most",
                    name,
                    int(wrong.sum()),
                    wrong.numel(),
                    float((a - b).abs().max()),
                )
        if same:
            logger.info("modules_to_record: %s as on the host", ", ".join(names))


class _Keep:
    """A forward hook: `name`, then `name#2` and so on for more tensors and calls."""

    def __init__(self, name: str, found: Outputs) -> None:
        self._name, self._found, self._count = name, found, 0

    def __call__(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        for value in tree_leaves(output):
            if isinstance(value, Tensor):
                self._count += 1
                name = self._name if self._count == 1 else f"{self._name}#{self._count}"
                self._found[name] = value.clone()  # it may be changed in place
