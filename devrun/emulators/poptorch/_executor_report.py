"""What an executor says about itself: times, names, anchored tensors."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from poptorch import enums
from poptorch._compile import Executable, micro_batches
from poptorch._errors import Error
from poptorch._logging import logger
from poptorch._options_base import check
from poptorch._run import Runner


class ExecutorReport:
    """The part of `PoplarExecutor` that reports."""

    _executable: Executable | None
    _runner: Runner | None
    _options: Any
    _training: bool
    _compile_seconds: float
    _run_seconds: float | None

    def _log_options(self) -> None:
        options = self._options
        if options.exists("use_model"):
            state = "Enabled" if options.use_model else "Disabled"
            logger.info("From the user configuration: Ipu model: %s", state)
        for key, value in options._popart.options.items():
            shown = str(value).lower() if isinstance(value, bool) else value
            logger.debug("Session option: set %s to value %s", key, shown)
        for name, _, mode, period in options.anchored_tensors.values():
            every = period if mode == enums.OutputMode.EveryN else 1
            kind = mode.name if mode == enums.OutputMode.Sum else mode.name.upper()
            logger.debug("Anchor %s %s/%d", name, kind, every)

    def _debugGetPopartIR(self) -> str:
        """Not modelled.

        Raises:
            Error: Always: there is no PopART graph.
        """
        raise Error("PopART's graph is not modelled by the emulator")

    def compilationTime(self) -> timedelta:
        """How long the capture took on this machine; says nothing about Poplar's."""
        if self._executable is None:
            raise Error("Please compile the model before obtaining compilation time.")
        if not self._options.show_compilation_progress_bar:
            raise Error(
                "Please set showCompilationProgressBar option to obtain compilation "
                "time."
            )
        return timedelta(seconds=self._compile_seconds)

    def cycleCount(self) -> int:
        """Captured operations in the last call: an emulator has no cycles to count.

        Raises:
            Error: Logging of cycles is off, or nothing ran yet.
        """
        if not self._options.log_cycle_count:
            raise Error(
                "Cycle count logging is disabled. Please set option logCycleCount to "
                "True to enable."
            )
        if self._run_seconds is None:
            raise Error(
                "Please run the model at least once before obtaining cycle count."
            )
        return self._operations()

    def _operations(self) -> int:
        nodes = self._executable.tape.nodes if self._executable is not None else []
        return len(nodes) * micro_batches(self._options)

    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Lists of the real lengths, of host seconds that mean nothing for a device."""
        names = ("input", "input_complete", "output", "output_complete")
        graph = self._executable
        if graph is None or self._run_seconds is None:
            return {name: [[]] for name in names}
        if self._options.synthetic_data:
            counts = [len(graph.inputs)] * 2 + [len(graph.outputs)] * 2
            return {n: [[] for _ in range(c)] for n, c in zip(names, counts)}
        parts = micro_batches(self._options) * self._options.input_group_size
        blocks = output_blocks(self._options)
        begin, end = [0.0], [self._run_seconds]
        return {
            "input": [begin * parts for _ in graph.inputs],
            "input_complete": [begin * parts for _ in graph.inputs],
            "output": [end * blocks for _ in graph.outputs],
            "output_complete": [end * blocks for _ in graph.outputs],
        }

    def _latency(self) -> tuple[float, float, float]:
        seconds = 0.0 if self._options.synthetic_data else self._run_seconds or 0.0
        return (seconds, seconds, seconds)

    def getLatency(self) -> tuple[float, float, float]:
        """Least, most and mean seconds of the last call on this host."""
        return self._latency()

    def getComputeLatency(self) -> tuple[float, float, float]:
        """As `getLatency`: transfers take no time here."""
        return self._latency()

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """Zeros: there is no transfer."""
        return (0.0, 0.0, 0.0)

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """Zeros: there is no transfer."""
        return (0.0, 0.0, 0.0)

    def getTensorNames(self) -> list[str]:
        """Names of variables and of what training adds to each."""
        graph = self._executable
        check(graph is not None, "Compile the model before asking for tensor names")
        if graph is None or self._runner is None:
            return []
        names = [v.name for v in self._runner.weights.variables]
        names += [f"input/{index}" for index in range(len(graph.inputs))]
        if self._training and self._runner.optimizer is not None:
            names.append("loss")
            trained = self._runner.optimizer.names.values()
            names += [
                f"{k}{n}" for n in trained for k in ("Gradient___", "UpdatedVar___")
            ]
            names += sorted(self._runner.optimizer.read_params())
        return names

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """The tensor anchored under `short_name`, as the last run left it.

        Raises:
            Error: A tensor other than a variable, `Gradient___` or `UpdatedVar___` of
                one, or nothing ran yet.
        """
        anchors = self._options.anchored_tensors
        check(
            short_name in anchors,
            f"No tensor is anchored as {short_name!r} (anchored: {sorted(anchors)})",
        )
        name = anchors[short_name][0]
        if self._runner is None or self._run_seconds is None:
            raise Error("Run the model before asking for an anchored tensor")
        if name == "finalLossScale":
            found: torch.Tensor | None = self._runner.loss_scale
        elif name.startswith("Gradient___"):
            found = self._runner.gradients.get(name.replace("Gradient___", ""))
        else:
            plain = name.replace("UpdatedVar___", "")
            named = {v.name: v.device[0] for v in self._runner.weights.variables}
            found = named.get(plain)
        if found is None:
            raise Error(
                f"Tensor {name} can't be anchored in the emulator: variables, "
                "Gradient___NAME and UpdatedVar___NAME can"
            )
        return found.detach().clone()


def output_blocks(options: Any) -> int:
    """How many micro-batches' outputs one call returns."""
    iterations, replicas = options.device_iterations, options.replication_factor
    steps = options.Training.gradient_accumulation
    mode = options.output_mode.name
    if mode in ("Final", "Sum"):
        return int(replicas)
    if mode == "EveryN":
        iterations //= options.output_return_period
    return int(iterations * steps * replicas)
