"""FLOPs of one update, counted while the first one runs.

Nothing is run for it: a forward pass more would draw random numbers, change running
statistics and call the user's code once too often. Where the model is compiled, which
hides its operations, the tracer of torch goes through it once more, after that update.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from devrun.errors import is_out_of_memory
from devrun.models.compiled import is_compiled
from devrun.models.step_module import StepModule
from devrun.models.traced import trace
from devrun.runners.checkpointer import Owner
from devrun.step import MicroBatches, StepOutput
from devrun.tensors import tensors_in

_UNITS = ("", "k", "M", "G", "T", "P", "E")


class _Count(TorchDispatchMode):
    """Sums the formulas of `torch.utils.flop_counter` over the operations.

    Its own mode, `FlopCounterMode`, also follows modules by hooks on all of them.
    """

    supports_higher_order_operators = True
    """`torch.cond` and the like run as without it, uncounted."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """A function that the model has compiled runs compiled, uncounted."""
        return True

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry

        super().__init__()
        self.total = 0
        self.unknown: set[str] = set()
        self._formulas = flop_registry

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            out = func(*args, **kwargs)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):  # with micro_batch: auto all is done anew
                self.total = 0
            raise
        operator = getattr(func, "overloadpacket", func)
        formula = self._formulas.get(operator)
        if formula is not None:
            try:
                self.total += int(formula(*args, **kwargs, out_val=out))
            except Exception:  # noqa: BLE001 - of a count, which must not end a run
                self.unknown.add(str(operator))
        return out


def obstacle(runner: Owner) -> str | None:
    """Why FLOPs are not counted, or None where they will be."""
    needed = ("supports_higher_order_operators", "ignore_compile_internals")
    if not all(hasattr(TorchDispatchMode, name) for name in needed):
        return f"torch {torch.__version__} could not compile functions meanwhile"
    if runner.session.adapter.data_share[1] != runner.world_size:
        return "the model is divided over processes, and each sees all of it"
    return runner.session.adapter.flops_obstacle


def first_step(runner: Any, step: Callable[..., StepOutput]) -> Callable[..., Any]:
    """`step` for the first update, of which it says how long all until then took."""
    began, runner.state.clock.began = runner.state.clock.began, 0.0
    if runner.count_flops:
        runner.count_flops, step = False, counted(runner, step)

    def first(*args: Any) -> StepOutput:
        start = perf_counter()
        outputs = step(*args)
        now = perf_counter()
        runner.logger.info(
            "first update: done %.1f s after the run began; its own step took %.1f s",
            now - began,
            now - start,
        )
        return outputs

    return first


def counted(runner: Owner, step: Callable[..., StepOutput]) -> Callable[..., Any]:
    """`step`, the adapter's, with its FLOPs counted and logged."""

    def first(*args: Any) -> StepOutput:
        count = _Count()
        if any(map(is_compiled, runner.model.modules())):
            outputs = step(*args)
            why = _count_traced(count, runner.session.step_module, args[1])
            if why is not None:
                runner.logger.info("FLOPs: not counted: %s", why)
                return outputs
        else:
            with count:
                outputs = step(*args)
        runner.session.step_module.flops = (
            None if count.unknown else count.total or None
        )
        runner.logger.info("FLOPs: %s", _summary(count, outputs["num_samples"]))
        return outputs

    return first


def _count_traced(count: _Count, step: StepModule, batch: Any) -> str | None:
    """Count what is in the micro-batches of `batch`; why not, or None."""
    parts = batch if isinstance(batch, MicroBatches) else [batch]
    kinds: dict[Any, list[Any]] = {}
    for part in parts:  # those of a kind have the same operations
        layout = tuple((t.shape, t.dtype) for t in tensors_in(part))
        kinds.setdefault(layout, []).append(part)
    for alike in kinds.values():
        before = count.total
        why = trace(step, alike[0], count)
        if why is not None:
            return f"the model is compiled, and cannot be traced as a whole: {why}"
        count.total = before + len(alike) * (count.total - before)
    return None


def _summary(count: _Count, samples: int) -> str:
    left = f", without {', '.join(sorted(count.unknown))}" if count.unknown else ""
    if not count.total:
        return f"none counted{left or ': no matrix product and no convolution'}"
    each = f", {_short(count.total / samples)} a sample" if samples else ""
    return (
        f"{_short(count.total)} in an update{each}: matrix products and convolutions, "
        f"forward and backward{left}"
    )


def _short(number: float) -> str:
    """Three digits and a prefix: `1.23 GFLOP`."""
    power = 0
    while number >= 999.5 and power < len(_UNITS) - 1:
        number, power = number / 1000, power + 1
    return f"{number:.3g} {_UNITS[power]}FLOP"
