"""Setters that choose, name or log something, without any change to results."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

from typing import TypeVar

from poptorch import enums
from poptorch._options_base import OptionsDict, check, check_bool, check_int
from poptorch._options_sections import _PopartOptions

R = TypeVar("R", bound="RecordedOptions")


class RecordedOptions(OptionsDict):
    """The part of `Options` about devices, caching, profiling and logs."""

    _popart: _PopartOptions

    def autoRoundNumIPUs(self: R, auto_round_num_ipus: bool = True) -> R:
        """Reserve the next power of two when a model uses another number of IPUs."""
        check_bool(auto_round_num_ipus, "autoRoundNumIPUs")
        return self.set(auto_round_num_ipus=auto_round_num_ipus)

    def connectionType(self: R, connection_type: enums.ConnectionType) -> R:
        """When the device is acquired; `Never` compiles only."""
        self.checkIsFrozen()
        check(
            isinstance(connection_type, enums.ConnectionType),
            f"not a ConnectionType: {connection_type!r}",
        )
        return self.set(connection_type=connection_type)

    def useOfflineIpuTarget(self: R, ipu_version: int = 2) -> R:
        """Compile for hardware of this version without being connected to any."""
        self.connectionType(enums.ConnectionType.Never)
        return self.createOrSet(ipu_version=ipu_version)

    def useIpuModel(self: R, use_model: bool) -> R:
        """Poplar's own simulator; the emulator is neither it nor hardware."""
        return self.createOrSet(use_model=check_bool(use_model, "useIpuModel"))

    def useIpuId(self: R, ipu_id: int) -> R:
        """Which device to take."""
        return self.createOrSet(ipu_id=check_int(ipu_id, "useIpuId"))

    def syncPattern(self: R, sync_pattern: enums.SyncPattern) -> R:
        """How IPUs synchronise."""
        self.checkIsFrozen()
        check(
            isinstance(sync_pattern, enums.SyncPattern),
            f"not a SyncPattern: {sync_pattern!r}",
        )
        return self.set(sync_pattern=sync_pattern)

    def enableExecutableCaching(self: R, path: str | None) -> R:
        """Keep executables under `path`; None or an empty path: do not."""
        self.checkIsFrozen()
        if path:
            self._popart.set("cachePath", path)
        self._popart.set("enableEngineCaching", bool(path))
        return self

    def enableSyntheticData(self: R, enabled: bool | int) -> R:
        """No transfers with the host: outputs have shapes and no meaning."""
        self.checkIsFrozen()
        check(isinstance(enabled, (bool, int)), "enableSyntheticData takes a bool")
        mode = 2 if enabled is True else int(enabled)
        self._popart.set("syntheticDataMode", mode)
        return self.set(synthetic_data=bool(enabled))

    def enableProfiling(self: R, profile_dir: str | None = None) -> R:
        """Ask for PopVision's profile; the emulator has none to write."""
        self.checkIsFrozen()
        settings = {"autoReport.all": "true"}
        if profile_dir is not None:
            settings["autoReport.directory"] = profile_dir
            self.createOrSet(profile_dir=profile_dir)
        self._popart.setEngineOptions(settings)
        return self

    def logCycleCount(self: R, log_cycle_count: bool) -> R:
        """Count cycles: `executor.cycleCount()`."""
        return self.set(log_cycle_count=check_bool(log_cycle_count, "logCycleCount"))

    def logDir(self: R, log_dir: str) -> R:
        """Where the backend writes its logs."""
        return self.set(log_dir=log_dir)

    def modelName(self: R, name: str) -> R:
        """The name of the model in profiles."""
        return self.createOrSet(model_name=name)

    def maxRepeatLogs(self: R, max_lines: int | None) -> R:
        """How often one message is repeated; None: always."""
        return self.createOrSet(max_repeat_logs=max_lines)

    def enableStableNorm(self: R, enabled: bool) -> R:
        """Slower, more exact norms; the emulator's are torch's."""
        return self.set(stable_norm=check_bool(enabled, "enableStableNorm"))

    def disableModuleNamescope(self: R) -> R:
        """No module names in the graph."""
        return self.set(module_namescope_enabled=False)

    def showCompilationProgressBar(self: R, show: bool = True) -> R:
        """Show progress; `compilationTime()` needs it."""
        return self.set(show_compilation_progress_bar=check_bool(show, "show"))

    def relaxOptimizerAttributesChecks(self: R, relax: bool = True) -> R:
        """Unexpected attributes of optimizers: messages instead of warnings."""
        return self.set(relax_optimizer_checks=check_bool(relax, "relax"))

    def sourceLocationExcludes(self: R, excludes: list[str]) -> R:
        """Files that are no source of an operation."""
        return self.set(source_location_excludes=list(excludes))

    def appendToLocationExcludes(self: R, *excludes: str) -> R:
        """More such files."""
        return self.set(
            source_location_excludes=[*self.source_location_excludes, *excludes]
        )

    def updatableNamedBuffers(self: R, buffers: list[str]) -> R:
        """Buffers that `copyNamedBuffersToDevice` sends."""
        return self.set(updatable_named_buffers=list(buffers))
