"""What the compiled graphs show: their balance, their memory, what they keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from devrun.hooks.base import Hook, Priority
from devrun.rehearsal.check.findings import Finding
from devrun.rehearsal.check.ipu.arithmetic import Sizes
from devrun.rehearsal.check.ipu.memory import Divided, Memory, divided
from devrun.rehearsal.check.ipu.options import settings_of
from devrun.rehearsal.check.ipu.splits import micro_batch, unbalanced
from devrun.rehearsal.check.keys import line_of, pasted
from devrun.rehearsal.check.notebook import Notebook
from devrun.rehearsal.check.probe import Probe, safely
from devrun.rehearsal.check.request import Request
from devrun.run import Run
from devrun.runners.training import Training

_ONCE = "Python code of forward runs only while the graph is captured"


class Graphs(Probe):
    """Looks at the model before its first update and at the graphs after it."""

    def __init__(self, request: Request, note: Notebook) -> None:
        super().__init__(request, note)
        self._sizes: Sizes | None = None
        self._cfg: Any = None
        self._divided: Divided | None = None

    def before(self, cfg: Any) -> None:
        settings = settings_of(cfg, self.request)
        if settings is not None and cfg.get("data"):
            self._sizes = Sizes(cfg, settings)
        self._cfg = cfg

    def built(self, training: Training) -> None:
        training.runner.register_hook(_FirstUpdate(self))

    def work_around(self, error: Exception, cfg: Any) -> dict[str, Any] | None:
        """A split that names what is not there is left to devrun."""
        key = getattr(error, "key", None)
        if key not in ("train_split_edges", "eval_split_edges"):
            return None
        settings = settings_of(cfg, self.request)
        edges = [] if settings is None else getattr(settings, key)
        ipus = 1 + max((e.get("ipu_id", 0) for e in edges), default=0)
        fix: dict[str, Any] = {f"ipu.{key}": None}
        if key == "train_split_edges":
            fix |= {"ipu.split": "auto", "ipu.num_ipus": ipus}
        reason = str(getattr(error, "reason", error))
        hint = "give the name of a layer that forward calls; or"
        site = line_of(cfg, f"ipu.{key}", f"device.{key}")
        self.note.found(
            Finding(
                "breaks", "split", key, reason, f"{hint} {pasted(fix)}", site, fix=fix
            )
        )
        return fix

    def before_update(self, runner: Any) -> None:
        """While the model is still as the user wrote it."""
        sizes = self._sizes
        if sizes is None:
            return
        step = runner.adapter.executors.module.step
        flat = runner.adapter.flat(runner.data_batch, "train")
        states = _states(runner.optimizer)
        found = unbalanced(step, micro_batch(flat, sizes.micro), states, self._cfg)
        if found is not None:
            self.note.found(replace(found, site=sizes.lines["split"]))
        limit = self.request.memory
        self._divided = divided(step, flat, sizes.micro, states, limit)

    def after_update(self, runner: Any) -> None:
        executors = runner.adapter.executors
        if self._sizes is not None and self.request.emulated:
            memory = Memory(runner.adapter, self._sizes, self.request.memory)
            self.note.fact("memory of each IPU", memory.rows)
            found = memory.finding(self._cfg, self._divided)
            if found is not None:
                self.note.found(found)
        seen = set()
        for each in (executors.trainer, *executors.evaluators):
            for one in each.call.frozen:
                if one.site not in seen:  # the graph of the evaluation does it too
                    self.note.found(
                        Finding(
                            "differs", "once", one.what, _ONCE, one.remedy, one.site
                        )
                    )
                seen.add(one.site)

    def after(self, training: Training) -> None:
        executors = getattr(training.runner.adapter, "executors", None)
        for each in (
            () if executors is None else (executors.trainer, *executors.evaluators)
        ):
            for path in sorted(each.changing) if each is not None else ():
                self.note.found(
                    Finding(
                        "differs",
                        "once",
                        path,
                        "it is no tensor and changes from batch to batch; the graph "
                        "keeps its first value",
                        "make it a tensor in the data set or its collate_fn",
                    )
                )


class _FirstUpdate(Hook):
    """Calls the probe around the first update of a run."""

    priority = Priority.LOWEST

    def __init__(self, probe: Graphs) -> None:
        self._probe = probe
        self._before = self._after = False

    def before_train_iter(self, runner: Run) -> None:
        if not self._before:
            self._before = True
            safely(self._probe.note, self._probe.before_update, runner)

    def after_train_iter(self, runner: Run) -> None:
        if not self._after:
            self._after = True
            safely(self._probe.note, self._probe.after_update, runner)


def _states(optimizer: Any) -> int:
    """Tensors that the optimizer keeps for each weight."""
    group = optimizer.param_groups[0]
    if "betas" in group or "alpha" in group:
        return 2
    return int(bool(group.get("momentum")))
