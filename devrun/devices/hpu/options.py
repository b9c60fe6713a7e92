"""The options of `--device hpu`, checked before anything is imported for them."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from devrun.devices.options import IndexedOptions, option, refused
from devrun.errors import ConfigError, nearest

MODES = ("eager", "compile", "lazy")


@dataclass(frozen=True)
class HPUOptions(IndexedOptions):
    """What `hpu` takes besides the options of every eager device."""

    mode_open = False
    """Whether `mode` was left to `performance: fast`; no option itself."""

    ddp_defaults = MappingProxyType(
        {
            "broadcast_buffers": False,
            "bucket_cap_mb": 256,
            "gradient_as_bucket_view": True,
        }
    )
    """As the vendor's own trainings have it: few large reductions, none for buffers."""

    emulate: bool = option(False, bool)
    """Run on the emulator of the SDK, on the host's cores."""
    mode: str | None = option(None, str)
    """`eager`, `compile` (torch.compile with the SDK's backend) or `lazy`; None is the
    first, and with `performance: fast` the second where weights are not divided."""
    fused: bool = option(True, bool)
    """Use the SDK's optimizers and clipping where they give the same numbers."""
    graphs: bool = option(False, bool)
    """Replay captured HPU graphs of the model; lazy mode only."""
    max_graphs: int = option(10, int)
    """Captured shapes at the most; batches of further ones run uncaptured."""

    def __post_init__(self) -> None:
        if self.mode is None:
            fast = self.performance == "fast"
            object.__setattr__(self, "mode", "compile" if fast else "eager")
            object.__setattr__(self, "mode_open", fast)
        if self.mode not in MODES:
            hint = nearest(str(self.mode), MODES)
            hint = f"; {hint}" if hint.startswith("did") else ""
            clause = f"must be one of {', '.join(MODES)}, got {self.mode!r}{hint}"
            raise refused("hpu", "mode", clause)
        if self.max_graphs < 1:
            raise refused("hpu", "max_graphs", f"must be 1 or more: {self.max_graphs}")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.index:
            raise ConfigError(
                f"hpu:{self.index} cannot be chosen: a process sees one Gaudi, hpu:0; "
                "HABANA_VISIBLE_MODULES says which",
                key="index",
            )
        if self.graphs and self.mode != "lazy":
            raise refused(
                "hpu",
                "graphs",
                f"needs mode lazy, got mode {self.mode}: HPU graphs exist in lazy mode "
                "only; in mode compile the compiled regions are graphs already",
            )
        if self.compile and self.mode != "compile":
            raise refused(
                "hpu",
                "compile",
                "holds torch.compile's arguments for mode compile, got mode "
                f"{self.mode}: set mode to compile",
            )
