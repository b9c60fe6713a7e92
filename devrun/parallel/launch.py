"""`launch`: one command as several processes, on machines that meet as torchrun's do.

torch's rendezvous says which machines take part. A signal reaches each process once and
they are waited for; when one fails, all start again, or the failure that was the cause
is told, in one line.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

import devrun
from devrun.errors import DeviceUnavailableError, RunInterrupted
from devrun.launched import AT_ONCE, HELD_BACK, VARIABLE
from devrun.log.logger import silence
from devrun.parallel.failure import FINAL, STOPPED, Ended, RankError, cause
from devrun.torch_features import distributed_error

_TO_ANSWER = 75
"""Seconds; torch itself waits 60 for the first machine to listen."""
_TO_FOLLOW = 30.0
"""Seconds that processes have to end in order after the first has."""
_TO_NOTICE = 5.0
"""And that the others have to find out that one has failed."""
_TO_LEAVE = 10.0
"""And those that did not, or were told twice to end, until they are killed."""


@dataclass(frozen=True)
class Launch:
    """How many processes, where, and how often they may be started again."""

    processes: int
    """Of this machine."""
    max_restarts: int = 0
    nodes: tuple[int, int] = (1, 1)
    """Machines that the run needs, and those that it may have."""
    endpoint: str | None = None
    """`HOST:PORT` where the machines meet; None where there is one."""


class Signals(Protocol):
    """Where the signals that end a run are taken down."""

    received: list[signal.Signals]
    raising: bool
    """Whether the next one ends the launch, as there is nobody to pass it on to."""

    def interrupt(self) -> None:
        """End the launch if there was one."""


def launch(
    words: Sequence[str],
    how: Launch,
    signals: Signals,
    on_restart: Callable[[RankError, int], None],
) -> None:
    """Run `devrun WORDS` in several processes; return when all have ended well.

    Args:
        signals: has taken over those that end a run.
        on_restart: called before all processes start again, with the failure that is
            the reason and the number of this restart.

    Raises:
        RankError: a process has failed, with its status and its own last error.
        RunInterrupted: a signal ended the processes; 75 where they saved.
        DeviceUnavailableError: the machines do not find each other.
    """
    silence("torch.distributed.elastic")  # what follows says it in one line
    # a machine that joins later would look for the shared store of the first start
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    folder = Path(tempfile.mkdtemp(prefix="devrun-ranks-"))
    failure = None
    try:
        with ExitStack() as ends, _met(how):
            meeting = _answered(lambda: get_rendezvous_handler(_meeting(how)))
            ends.callback(meeting.shutdown)
            machine = _Machine(words, how, folder, meeting, signals)
            ends.callback(machine.clear)
            while (failure := machine.run()) and machine.goes_on(failure):
                on_restart(failure, machine.restarts)
    finally:
        if failure is None or not failure.keeps_output:
            shutil.rmtree(folder, ignore_errors=True)
    if failure is not None and failure.exit_code in STOPPED:
        raise RunInterrupted(str(failure), failure.exit_code)
    if failure is not None:
        raise failure


class _Machine:
    """The processes of this machine, from meeting to meeting."""

    def __init__(
        self,
        words: Sequence[str],
        how: Launch,
        folder: Path,
        meeting: Any,
        signals: Signals,
    ) -> None:
        self._command = [sys.executable, "-m", "devrun", *words]
        self._how, self._folder = how, folder
        self._meeting, self._signals = meeting, signals
        self.restarts = 0
        self._since, self._passed_on, self._first_rank = time.time(), 0, 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pause = threading.Event()
        self._failure: RankError | None = None

    def run(self) -> RankError | None:
        """Meet, start the processes, and wait for them; the failure, if there is one.

        When machines come or go they meet and start once more.
        """
        failed = None
        while failed is None:
            try:
                self._start()
            except RendezvousError as error:
                if self._failure is None:
                    raise
                # another machine does not start again
                raise self._failure from error
            failed = self._wait()
        ended = {
            self._first_rank + n: Ended.of(process.returncode, place, n in failed)
            for n, process in enumerate(self._processes)
            if process.returncode and (place := self._place_of(n))
        }
        self._failure = cause(ended) if ended else None
        return self._failure

    def goes_on(self, failure: RankError) -> bool:
        """Whether all are to start again."""
        used_up = self.restarts >= self._how.max_restarts
        self.restarts += 1
        return not (used_up or self._passed_on or failure.exit_code in FINAL)

    def clear(self) -> None:
        """End what the processes have left behind, such as workers of their loaders."""
        for process in self._processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # stuck in the kernel
                process.wait(_TO_LEAVE)

    def _start(self) -> None:
        self._signals.raising = True
        self._signals.interrupt()
        met = self._meeting.next_rendezvous()
        self._signals.raising = False
        self._signals.interrupt()
        mine = json.dumps([self._how.processes, self._since, self.restarts])
        met.store.set(f"devrun/machine/{met.rank}", mine)
        keys = [f"devrun/machine/{each}" for each in range(met.world_size)]
        told = [json.loads(met.store.get(key)) for key in keys]
        counts, begun, restarts = zip(*told)
        self._first_rank, self._since = sum(counts[: met.rank]), min(begun)
        shared = {
            **_environment(self._how.processes),
            VARIABLE: f"{os.getpid()} {self._since}",
            "WORLD_SIZE": sum(counts),
            "LOCAL_WORLD_SIZE": self._how.processes,
            "MASTER_ADDR": met.bootstrap_store_info.master_addr,
            "MASTER_PORT": met.bootstrap_store_info.master_port,
            "TORCHELASTIC_RESTART_COUNT": max(restarts),
            "TORCHELASTIC_RUN_ID": "devrun",
        }
        # they inherit the mask: none is to die of a signal that the launcher passes on
        # before it can answer
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
        try:
            shutil.rmtree(self._folder, ignore_errors=True)
            number = range(self._how.processes)
            self._processes = [self._started(each, shared) for each in number]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _started(self, number: int, shared: dict[str, Any]) -> subprocess.Popen[bytes]:
        place = self._place_of(number)
        place.mkdir(parents=True)
        own = {
            **shared,
            "LOCAL_RANK": number,
            "RANK": self._first_rank + number,
            "TORCHELASTIC_ERROR_FILE": place / "error.json",
        }
        env = {**os.environ, **{key: str(value) for key, value in own.items()}}
        # the first process of a machine writes for all; what others write goes to files
        with ExitStack() as files:
            outputs: dict[str, Any] = {
                name: files.enter_context((place / name).open("wb"))
                for name in ("stdout", "stderr")
                if number
            }
            return subprocess.Popen(
                self._command, env=env, start_new_session=True, **outputs
            )

    def _place_of(self, number: int) -> Path:
        return self._folder / str(number)

    def _wait(self) -> set[int] | None:
        """The processes that failed by themselves, when all have ended; None where
        machines wait to join."""
        ending = None
        while True:
            self._pause.wait(0.1)
            self._pass_on()
            codes = [process.poll() for process in self._processes]
            failed = {number for number, code in enumerate(codes) if code}
            ending = (ending or time.monotonic()) if failed else None
            late = ending is not None and not self._has_time(codes, ending)
            if None not in codes or late:
                break
            if not failed and self._others_wait():
                self._end(signal.SIGTERM)  # they save, if they can
                return None
        self._end(AT_ONCE if self._passed_on else signal.SIGTERM)
        return failed

    def _has_time(self, codes: Sequence[int | None], ending: float) -> bool:
        """Whether the other processes may still end by themselves."""
        in_order = self._passed_on or any(code in STOPPED for code in codes)
        limit = _TO_FOLLOW if in_order else _TO_NOTICE
        return time.monotonic() - ending < limit

    def _pass_on(self) -> None:
        """Give the processes each signal once; the second ends them soon."""
        received = self._signals.received
        if received and not self._passed_on:
            self._send(received[0])
        if len(received) > 1 and self._passed_on < 2:
            self._end(AT_ONCE)
        self._passed_on = len(received)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)  # nothing where it has ended

    def _end(self, number: signal.Signals) -> None:
        """Send the signal, wait, and end all that is left."""
        self._send(number)
        end = time.monotonic() + _TO_LEAVE
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        self.clear()

    def _others_wait(self) -> bool:
        try:
            return bool(self._meeting.num_nodes_waiting() > 0)
        except RendezvousError:  # the machine with the store has ended
            return False


def _meeting(how: Launch) -> RendezvousParameters:
    alone = how.endpoint is None
    return RendezvousParameters(
        backend="c10d",
        endpoint=how.endpoint or "localhost:0",
        run_id=uuid.uuid4().hex if alone else "devrun",
        min_nodes=how.nodes[0],
        max_nodes=how.nodes[1],
        local_addr="localhost" if alone else None,
        **({"is_host": True} if alone else {}),
    )


def _answered(connect: Callable[[], Any]) -> Any:
    """What `connect` gives, in a thread, as torch waits without end for a program that
    listens at the port and says nothing.

    Raises:
        RendezvousError: it takes too long; or what `connect` raises.
    """
    found: Future[Any] = Future()

    def work() -> None:
        try:
            found.set_result(connect())
        except Exception as error:  # noqa: BLE001 - the other thread raises it
            found.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return found.result(_TO_ANSWER)
    except TimeoutError:
        raise RendezvousError(
            f"what listens there did not answer within {_TO_ANSWER} s: it is another "
            "program; take another port"
        ) from None


def _environment(processes: int) -> dict[str, Any]:
    """What all processes are to find in their environment, beside where they are."""
    cores = max(1, len(os.sched_getaffinity(0)) // processes)
    found: dict[str, Any] = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", cores)
    }
    home = str(Path(devrun.__file__).resolve().parents[1])
    if home not in (*site.getsitepackages(), site.getusersitepackages()):
        paths = [home, os.environ.get("PYTHONPATH", "")]
        found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return found


@contextmanager
def _met(how: Launch) -> Iterator[None]:
    """What torch says of a meeting that fails, in one line."""
    try:
        yield
    except (RendezvousError, distributed_error(), ValueError) as error:
        cause = error.__cause__ or error
        first = (str(cause).splitlines() or [type(cause).__name__])[0]
        where = how.endpoint or "this machine"
        raise DeviceUnavailableError(
            f"the processes could not meet at {where}: {first:.200}"
        ) from error
