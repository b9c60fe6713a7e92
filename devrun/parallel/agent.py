"""`Agent`: torch's elastic agent, with how a run of devrun ends."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import (
    LocalElasticAgent,
)
from torch.distributed.elastic.multiprocessing import LogsSpecs

from devrun.launched import AT_ONCE, HELD_BACK, VARIABLE
from devrun.parallel.failure import STOPPED, RankError, cause

_TO_FOLLOW = 30.0
"""Seconds that processes have to end in order after the first has."""
_TO_NOTICE = 5.0
"""And that the others have to find out that one has failed."""
_TO_LEAVE = 10
"""And those that did not, or were told twice to end, until they are killed."""
_CAUSE, _READ = "devrun/cause", "devrun/read"
"""Keys of the store by which the machines tell each other why one has failed."""
_TO_TELL = timedelta(seconds=5)


class Signals(Protocol):
    """Where the signals that end a run are taken down."""

    received: list[signal.Signals]
    raising: bool
    """Whether the next one ends the launch, as there is nobody to pass it on to."""

    def interrupt(self) -> None:
        """End the launch if there was one."""


class Agent(LocalElasticAgent):
    """Passes each signal on once, waits while processes save, and finds the cause."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs: LogsSpecs,
        signals: Signals,
        on_restart: Callable[[RankError, int], None],
    ) -> None:
        super().__init__(spec, logs, shutdown_timeout=_TO_LEAVE)
        self.failure: RankError | None = None
        self._signals, self._on_restart = signals, on_restart
        self._passed_on = 0
        self._since, self._machines, self._next_look = time.time(), 1, 0.0
        self._ending: float | None = None
        """When the first process of this start was seen to have ended."""

    def close(self) -> None:
        """Leave the meeting, and no process behind."""
        self._spec.rdzv_handler.shutdown()
        self._clear()

    @property
    def _spec(self) -> WorkerSpec:
        return self._worker_group.spec

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        self._signals.raising = True
        self._signals.interrupt()
        try:
            super()._rendezvous(worker_group)
        finally:
            self._signals.raising = False

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._signals.interrupt()
        self.failure = self._ending = None
        os.environ[VARIABLE] = f"{os.getpid()} {self._first_began(worker_group)}"
        # they inherit the mask: none is to die of a signal that the launcher passes on
        # before it can answer
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
        try:
            started: dict[int, Any] = super()._start_workers(worker_group)
            return started
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _first_began(self, worker_group: WorkerGroup) -> float:
        """When the first of the machines began, in seconds since 1970."""
        group: Any = worker_group  # what is in it is known only here
        store, rank, self._machines = (
            group.store,
            group.group_rank,
            group.group_world_size,
        )
        keys = [f"devrun/since/{each}" for each in range(self._machines)]
        store.set(keys[rank], str(self._since))
        self._since = min(float(store.get(key)) for key in keys)
        return self._since

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        super()._shutdown(timeout=_TO_LEAVE)
        self._clear()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._pass_on()
        if self._machines > 1 and (told := self._told_elsewhere()):
            self._close(signal.SIGTERM)
            self.failure = told
            self._remaining_restarts = 0
            return RunResult(state=WorkerState.FAILED)
        codes = self._codes()
        failed = [rank for rank, code in codes.items() if code]
        if None in codes.values() and (not failed or self._has_time(codes)):
            return RunResult(state=WorkerState.HEALTHY)
        if failed:
            self._close(AT_ONCE if self._passed_on else signal.SIGTERM)
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            self._note(result, failed, worker_group)
        self._clear()
        return result

    def _codes(self) -> dict[int, int | None]:
        """Local rank -> exit status, None while it runs."""
        handlers = self._pcontext.subprocess_handlers  # type: ignore[union-attr]
        return {rank: handler.proc.poll() for rank, handler in handlers.items()}

    def _has_time(self, codes: dict[int, int | None]) -> bool:
        """Whether the other processes may still end by themselves."""
        in_order = self._passed_on or any(code in STOPPED for code in codes.values())
        self._ending = self._ending or time.monotonic()
        limit = _TO_FOLLOW if in_order else _TO_NOTICE
        return time.monotonic() - self._ending < limit

    def _pass_on(self) -> None:
        """Give the processes each signal once; the second ends them soon."""
        received = self._signals.received
        if received and not self._passed_on:
            for pid in self._pcontext.pids().values():  # type: ignore[union-attr]
                with suppress(ProcessLookupError):
                    os.kill(pid, received[0])
        if len(received) > 1 and self._passed_on < 2:
            self._close(AT_ONCE)
        self._passed_on = len(received)

    def _close(self, number: signal.Signals) -> None:
        if self._pcontext is not None:
            self._pcontext.close(number, _TO_LEAVE)

    def _clear(self) -> None:
        """End what the processes have left behind, such as workers of their loaders."""
        if self._pcontext is None:
            return
        for pid in self._pcontext.pids().values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _agreed(self, failure: RankError) -> RankError:
        """The cause, of which any of the machines may know; else `failure`."""
        if self._machines == 1:
            return failure
        store: Any = self._store
        over = failure.final or not self._remaining_restarts or bool(self._passed_on)
        told = json.dumps([str(failure), failure.exit_code, over])
        with suppress(RuntimeError):  # the machine with the store is gone
            if failure.lost:
                with suppress(RuntimeError):  # no machine knows better
                    store.wait([_CAUSE], _TO_TELL)
            store.compare_set(_CAUSE, "", told)
            message, status, over = json.loads(store.get(_CAUSE))
            if failure.lost:
                failure = RankError(message, status, final=over)
            if over:  # the store is to outlive the others' question
                store.set(f"{_READ}/{self._worker_group.group_rank}", "")
                store.wait([f"{_READ}/{n}" for n in range(self._machines)], _TO_TELL)
        return failure

    def _told_elsewhere(self) -> RankError | None:
        """Why the run is over, when another machine has found that."""
        if time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + 1
        store: Any = self._store
        with suppress(RuntimeError):
            if store.check([_CAUSE]):
                message, status, over = json.loads(store.get(_CAUSE))
                if over and status not in STOPPED:
                    store.set(f"{_READ}/{self._worker_group.group_rank}", "")
                    return RankError(message, status, final=True)
        return None

    def _note(
        self, result: RunResult, failed: list[int], worker_group: WorkerGroup
    ) -> None:
        ranks = [worker.global_rank for worker in worker_group.workers]
        outputs = self._pcontext.stderrs  # type: ignore[union-attr]
        failure = cause(
            result.failures,
            [ranks[local] for local in failed],
            {ranks[local]: path for local, path in outputs.items()},
        )
        self.failure = failure = self._agreed(failure)
        if failure.final or self._passed_on:
            self._remaining_restarts = 0
        elif self._remaining_restarts:
            done = self._spec.max_restarts - self._remaining_restarts
            self._on_restart(failure, done + 1)
