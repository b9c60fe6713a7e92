"""`Memory`: what a training needs of a GPU's memory, measured on none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from devrun.devices.update import needs_closure
from devrun.hooks.base import Priority
from devrun.parallel.strategy import optimizers_in
from devrun.probes.aside import aside
from devrun.probes.finding import Finding
from devrun.probes.keys import BatchSize, pasted
from devrun.probes.memory import Use, memory_of, needed
from devrun.probes.probe import Probe, Training
from devrun.run import Run
from devrun.step import MicroBatches
from devrun.tensors import nbytes, tensors_in
from devrun.text import size_text

_FACT, _PIECES = "memory in MiB", "optimizer_config.micro_batch"
_LESS = (
    "device: {type: cuda} with fewer weights on each GPU (fsdp), or a smaller model or "
    "sample: one sample does not fit"
)


class Memory(Probe):
    """Weights, gradients, optimizer state and activations of the config's own batch."""

    priority = Priority.HIGHEST
    batch: Any = None
    """The largest of the rehearsal."""

    def before(self, cfg: Any) -> None:
        self.size = BatchSize.of(cfg)
        update = cfg.get("optimizer_config") or {}
        self.splits = update.get("micro_batch") == "auto"
        """Whether devrun makes batches fit by itself."""
        self.recomputes = bool(cfg.get("gradient_checkpointing"))

    def built(self, training: Training) -> None:
        self._largest = -1
        training.runner.register_hook(self)

    def before_train_iter(self, runner: Run) -> None:
        given = runner.data_batch
        for batch in given if isinstance(given, MicroBatches) else [given]:
            size = sum(nbytes(tensor) for tensor in tensors_in(batch))
            if size > self._largest:
                self.batch, self._largest = batch, size

    def after(self, training: Training) -> Iterator[Finding]:
        size = self.size
        if self.batch is None or size is None:
            return
        # one with a closure calls the model by itself
        optimizers = optimizers_in(training.runner.optimizer)
        if not optimizers or any(map(needs_closure, optimizers)):
            return
        try:
            use = self._use(training, size.samples, size.accumulate)
        except RuntimeError as error:
            self.note.fact(_FACT, {"not measured": str(error)})
            if self.request.memory is None:
                return  # nobody asked
            raise
        margin = needed(use.peak) - use.peak
        taken = {**use.bytes, "peak": use.peak, "margin": margin}
        mib: dict[str, Any] = {kind: round(n / 2**20, 2) for kind, n in taken.items()}
        told = {**mib, "samples": size.samples, "highest in": use.held_by}
        self.note.fact(_FACT, told)
        limit = self.request.memory
        if limit is not None and needed(use.peak) > limit and not self.splits:
            yield self._finding(training, size, use, limit)

    def _use(
        self, training: Training, samples: int, accumulate: int, recompute: bool = False
    ) -> Use:
        """The memory of `samples`."""
        given = (training, self.batch, samples, accumulate)
        found: Use = aside(partial(memory_of, *given, recompute=recompute))
        return found

    def _finding(
        self, training: Training, size: BatchSize, use: Use, limit: int
    ) -> Finding:
        fix = self._fitting(training, size, limit)
        split = ", ".join(
            f"{kind} {size_text(size)}"
            for kind, size in sorted(use.bytes.items(), key=lambda row: -row[1])
            if size
        )
        margin = size_text(needed(use.peak) - use.peak)
        remedy = pasted(fix) if fix else _LESS
        why = (
            f"it needs {size_text(use.peak)} in {use.held_by} ({split}) and about "
            f"{margin} for CUDA's context, workspaces and allocator; there are "
            f"{size_text(limit)}"
        )
        what = f"{size.key}: {size.samples}"
        return Finding("breaks", "out of memory", what, why, remedy, size.site, fix=fix)

    def _fitting(
        self, training: Training, size: BatchSize, limit: int
    ) -> dict[str, Any] | None:
        """A micro-batch that fits, by halves, with recomputation where it must be."""

        def fits(samples: int, recompute: bool) -> bool:
            pieces = size.accumulate * (size.samples // samples)
            use = self._use(training, samples, pieces, recompute)
            return needed(use.peak) <= limit

        for recompute in (False,) if self.recomputes else (False, True):
            with suppress(RuntimeError):  # no blocks to compute again
                samples = size.samples
                if not fits(1, recompute):
                    continue
                while not fits(samples, recompute):
                    samples //= 2
                less = {_PIECES: samples} if samples < size.samples else {}
                more = {"gradient_checkpointing": True} if recompute else {}
                return {**less, **more}
        return None
