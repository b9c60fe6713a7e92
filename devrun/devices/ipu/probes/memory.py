"""Whether the model has room, by the emulator's estimate, at the config's own sizes."""

from __future__ import annotations

from typing import Any

from torch import nn

from devrun.devices.ipu.probes.arithmetic import Sizes
from devrun.devices.ipu.probes.balance import Trace, balanced
from devrun.devices.ipu.probes.splits import edges_of
from devrun.probes.finding import Finding
from devrun.probes.keys import pasted

IPU_MEMORY = 1472 * 624 * 1024
"""Bytes of one Mk2 IPU: 1472 tiles of 624 KiB."""
_MIB = 2**20
_IPUS = (2, 4, 8, 16, 32, 64)
_OTHERWISE = (
    "half precision (fp16), recomputation (train_ckpt_nodes), or a smaller model"
)


class Memory:
    """`rows` has the bytes of each IPU by purpose.

    Activations grow with the micro-batch, of which the rehearsal may have a smaller.

    Args:
        limit: bytes of an IPU as the user gave them; None for those of a Mk2 IPU.
    """

    def __init__(self, adapter: Any, sizes: Sizes, limit: int | None) -> None:
        trainer = adapter.executors.trainer
        estimate: Any = adapter.sdk.emulation.memory_estimate(trainer.inner)
        grow = {"activations": sizes.micro / trainer.call.rows}
        self.rows: list[dict[str, int]] = [
            {name: int(n * grow.get(name, 1)) for name, n in row.items()}
            for row in estimate
        ]
        self._sizes, self._told = sizes, limit is not None
        self._limit = limit or IPU_MEMORY

    def finding(self, cfg: Any, trace: Trace | None) -> Finding | None:
        """The fullest IPU, where it is too full.

        Args:
            trace: of a micro-batch; None of a model that cannot be followed.
        """
        totals = [sum(row.values()) for row in self.rows]
        fullest = totals.index(max(totals))
        row, total = self.rows[fullest], totals[fullest]
        if total <= self._limit:
            return None
        parts = ", ".join(f"{name} {size / _MIB:.3g}" for name, size in row.items())
        whose = "--memory says" if self._told else "a Mk2 IPU has"
        fix = self._fewer()
        if not fix and trace is not None:
            fix = self._divided(trace, cfg)
        why = (
            f"about {total / _MIB:.4g} MiB ({parts}) by the emulator's estimate for "
            f"a micro-batch of {self._sizes.micro}, where {whose} "
            f"{self._limit / _MIB:.4g}"
        )
        remedy = pasted(fix) if fix else _OTHERWISE
        said = ("memory", f"IPU {fullest}", why, remedy, self._sizes.lines["micro"])
        return Finding("breaks" if self._told else "advice", *said, fix=fix)

    def _fewer(self) -> dict[str, Any] | None:
        """The largest micro-batch that has room, with as many samples an update."""
        sizes, micro = self._sizes, self._sizes.micro
        for row in self.rows:
            rest = self._limit - (sum(row.values()) - row["activations"])
            micro = min(micro, int(rest * sizes.micro / max(row["activations"], 1)))
        even = (n for n in range(1, micro + 1) if sizes.micro % n == 0)
        return None if micro < 1 else self._with(max(even))

    def _divided(self, trace: Trace, cfg: Any) -> dict[str, Any] | None:
        """The model over as many IPUs as have room, if all of it divides evenly."""
        total, blocks = sum(sum(row.values()) for row in self.rows), trace.blocks()
        needed = (n for n in _IPUS if total <= n * self._limit)
        ipus = next(needed, _IPUS[-1])
        if ipus > len(blocks):
            return None
        split = edges_of(balanced(blocks, ipus), cfg)
        return {**split, **self._with(self._sizes.micro, 2 * ipus - 1)}

    def _with(self, micro: int, least: int = 1) -> dict[str, Any]:
        """A micro-batch and the accumulation with which an update stays as large."""
        sizes = self._sizes
        accumulation = max(least, sizes.micro * sizes.accumulation // micro)
        changes = {} if micro == sizes.micro else {sizes.micro_key: micro}
        if accumulation != sizes.accumulation:
            changes[sizes.accumulation_key] = accumulation
        return changes


def is_large(step: nn.Module, limit: int | None) -> bool:
    """Whether its weights and gradients alone may be too much for an IPU."""
    size = sum(p.numel() * p.element_size() for p in step.parameters())
    return 4 * size > (limit or IPU_MEMORY)
