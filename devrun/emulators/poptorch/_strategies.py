"""Stages, phases and the execution strategies that arrange them."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

from typing import Any

from poptorch import enums
from poptorch._errors import Error
from poptorch._options_base import check, check_bool, check_int


class Stage:
    """Blocks that run one after the other on one IPU."""

    def __init__(self, *block_ids: str) -> None:
        check(len(block_ids) > 0, "A stage needs at least one block id")
        for block in block_ids:
            check(isinstance(block, str), f"Block ids must be strings, not {block!r}")
        self._blocks = list(block_ids)
        self._stage_id = -1
        self._phase_id = -1
        self._ipu_id: int | None = None

    @property
    def blocks(self) -> list[str]:
        """The ids of the blocks."""
        return self._blocks

    def ipu(self, ipu: int) -> Stage:
        """Run on IPU `ipu`, whatever the blocks say."""
        self._ipu_id = check_int(ipu, "ipu", 0)
        return self


class Phase:
    """Stages that run at the same time, one per IPU."""

    def __init__(self, *arg: Stage | str) -> None:
        check(len(arg) > 0, "A phase needs at least one stage")
        if all(isinstance(a, Stage) for a in arg):
            self.stages = [a for a in arg if isinstance(a, Stage)]
        else:
            check(
                all(isinstance(a, str) for a in arg),
                "A phase takes stages or block ids, not both",
            )
            self.stages = [Stage(*(str(a) for a in arg))]

    def ipus(self, *ipus: int) -> Phase:
        """One IPU id for each stage of the phase."""
        check(
            len(ipus) == len(self.stages),
            f"{len(self.stages)} IPU ids are needed, one per stage, not {len(ipus)}",
        )
        for stage, ipu in zip(self.stages, ipus):
            stage.ipu(ipu)
        return self

    def stage(self, index: int) -> Stage:
        """The stage at `index`."""
        return self.stages[index]


class _IExecutionStrategy:
    """What arranges blocks on IPUs."""

    mode = -1
    pipelined = False

    def __init__(self) -> None:
        self._blocks: dict[str, Stage] = {}

    def stage(self, block_id: str) -> Stage | None:
        """The declared stage of a block; None where stages follow the blocks."""
        if self._blocks:
            check(
                block_id in self._blocks,
                f"Unknown block {block_id!r}: no stage of the execution strategy "
                f"declares it (declared: {sorted(self._blocks)})",
            )
        return self._blocks.get(block_id)

    def ipu_of(self, block_id: str, ipu_id: int | None, current: int) -> int:
        """The IPU on which an opened block runs."""
        stage = self.stage(block_id)
        if stage is not None and stage._ipu_id is not None:
            return stage._ipu_id
        if ipu_id is not None:
            return ipu_id
        return stage._stage_id if stage is not None else current

    def backendOptions(self) -> dict[str, Any]:
        """What the backend gets."""
        return {"execution_mode": self.mode}

    def _register(self, stage: Stage) -> None:
        for block in stage.blocks:
            check(block not in self._blocks, f"Block {block} is already in a stage")
            self._blocks[block] = stage

    def __repr__(self) -> str:
        return f"{type(self).__name__}(blocks={sorted(self._blocks)})"


class PipelinedExecution(_IExecutionStrategy):
    """Stages work on successive micro-batches at the same time (the default)."""

    mode = 0
    pipelined = True

    def __init__(self, *args: enums.AutoStage | str | Stage) -> None:
        super().__init__()
        self._auto_stage = enums.AutoStage.SameAsIpu
        if len(args) == 1 and isinstance(args[0], enums.AutoStage):
            self._auto_stage = args[0]
            return
        for index, arg in enumerate(args):
            check(
                isinstance(arg, (str, Stage)),
                f"Expected AutoStage, block ids or stages, not {arg!r}",
            )
            stage = arg if isinstance(arg, Stage) else Stage(str(arg))
            stage._stage_id = index
            self._register(stage)

    @property
    def auto_stage(self) -> enums.AutoStage:
        """How blocks become stages when none are declared."""
        return self._auto_stage

    def ipu_of(self, block_id: str, ipu_id: int | None, current: int) -> int:
        """As the base class; undeclared blocks follow `AutoStage`."""
        if not self._blocks:
            if self._auto_stage == enums.AutoStage.SameAsIpu:
                check(
                    ipu_id is not None,
                    f"Block {block_id!r} needs an ipu_id: AutoStage.SameAsIpu makes "
                    "the IPU the stage",
                )
                if self.pipelined and ipu_id is not None and ipu_id < current:
                    raise Error(
                        f"Block {block_id!r} goes back from IPU {current} to IPU "
                        f"{ipu_id}: AutoStage.SameAsIpu makes the IPU the stage, and "
                        "the stages of a pipeline ascend; AutoStage.AutoIncrement "
                        "numbers them anew"
                    )
            elif ipu_id is None:
                return current + 1
        return super().ipu_of(block_id, ipu_id, current)


class ShardedExecution(PipelinedExecution):
    """Stages work one after the other on one micro-batch: no limit on their number."""

    mode = 1
    pipelined = False


class _PhasedExecution(_IExecutionStrategy):
    """Phases in sequence."""

    def __init__(self, *phases: Phase | list[Any] | tuple[Any, ...] | str) -> None:
        super().__init__()
        check(len(phases) > 0, "Phased execution needs phases")
        self._phases = [self._as_phase(phase) for phase in phases]
        self._options: dict[str, Any] = {}
        for index, phase in enumerate(self._phases):
            for number, stage in enumerate(phase.stages):
                stage._phase_id, stage._stage_id = index, number
                self._register(stage)

    @staticmethod
    def _as_phase(phase: Any) -> Phase:
        if isinstance(phase, Phase):
            return phase
        if isinstance(phase, (list, tuple)):
            return Phase(*phase)
        check(isinstance(phase, (str, Stage)), f"not a phase: {phase!r}")
        return Phase(phase)

    def phase(self, index: int) -> Phase:
        """The phase at `index`."""
        return self._phases[index]

    def useSeparateBackwardPhase(self, use: bool = True) -> _PhasedExecution:
        """Run the backward pass in phases of its own."""
        self._options["separate_backward_phase"] = check_bool(use, "use")
        return self

    def backendOptions(self) -> dict[str, Any]:
        """What the backend gets."""
        return {**super().backendOptions(), **self._options}


class ParallelPhasedExecution(_PhasedExecution):
    """Phases alternate between even and odd IPUs."""

    mode = 2

    def ipu_of(self, block_id: str, ipu_id: int | None, current: int) -> int:
        """Even phases run on even IPUs, odd ones on odd IPUs."""
        stage = self.stage(block_id)
        ipu = super().ipu_of(block_id, ipu_id, current)
        if stage is None:
            return ipu
        if stage._ipu_id is None:
            return 2 * stage._stage_id + stage._phase_id % 2
        if stage._phase_id % 2 != ipu % 2:
            raise Error(
                f"Invalid IPU {ipu} for phase {stage._phase_id}: even phases need "
                "even IPUs and odd phases odd ones"
            )
        return ipu

    def sendTensorsOffChipAfterFwd(self, off: bool = True) -> ParallelPhasedExecution:
        """Keep activations off chip between forward and backward."""
        self._options["tensors_liveness"] = int(check_bool(off, "off"))
        return self


class SerialPhasedExecution(_PhasedExecution):
    """Phases one after the other on the same IPUs."""

    mode = 3

    def setTensorsLiveness(self, liveness: enums.Liveness) -> SerialPhasedExecution:
        """When tensors leave the chip."""
        check(isinstance(liveness, enums.Liveness), f"not a Liveness: {liveness!r}")
        self._options["tensors_liveness"] = int(liveness)
        return self
