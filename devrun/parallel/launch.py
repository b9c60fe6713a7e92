"""`launch`: one command as several processes, by torch's elastic agent.

The agent starts the processes, finds those of other machines, and starts all again when
one has failed. What is added here is how they end: a signal reaches each once and they
are waited for, and the failure that was the cause is told, in one line.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

import devrun
from devrun.errors import DeviceUnavailableError, RunInterrupted
from devrun.log.logger import silence
from devrun.parallel.agent import Agent, Signals
from devrun.parallel.failure import STOPPED, RankError

_TO_ANSWER = 75
"""Seconds; torch itself waits 60 for the first machine to listen."""


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
    name: str = "devrun"
    """What the machines of one run have in common."""
    hosts: bool | None = None
    """Whether the meeting point is on this machine; None: HOST tells."""


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
    folder = Path(tempfile.mkdtemp(prefix="devrun-ranks-"))
    # the first process of a machine speaks for all; what others say goes to files
    apart = dict.fromkeys(range(1, how.processes), Std.ALL)
    agent = None
    try:
        with _environment(how):
            with _met(how):
                logs = DefaultLogsSpecs(str(folder), redirects=apart)
                agent = Agent(_spec(words, how), logs, signals, on_restart)
            with _met(how):
                agent.run()
        if (failure := agent.failure) is not None:
            if failure.exit_code in STOPPED:
                raise RunInterrupted(str(failure), failure.exit_code)
            raise failure
    finally:
        if agent is not None:
            agent.close()
        if agent is None or agent.failure is None or not agent.failure.keeps_output:
            shutil.rmtree(folder, ignore_errors=True)


def _spec(words: Sequence[str], how: Launch) -> WorkerSpec:
    alone = how.endpoint is None
    settings: dict[str, Any] = {}
    if alone or how.hosts is not None:
        settings["is_host"] = alone or how.hosts
    meeting = RendezvousParameters(
        backend="c10d",
        endpoint=how.endpoint or "localhost:0",
        run_id=f"{how.name}-{uuid.uuid4().hex}" if alone else how.name,
        min_nodes=how.nodes[0],
        max_nodes=how.nodes[1],
        local_addr="localhost" if alone else None,
        **settings,
    )
    return WorkerSpec(
        role="devrun",
        local_world_size=how.processes,
        entrypoint=sys.executable,
        # torch puts the local rank in place of ${local_rank}
        args=("-m", "devrun", *(word.replace("$", "$$") for word in words)),
        rdzv_handler=_answered(lambda: get_rendezvous_handler(meeting)),
        max_restarts=how.max_restarts,
        monitor_interval=0.1,
        local_addr="localhost" if alone else None,
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


@contextmanager
def _environment(how: Launch) -> Iterator[None]:
    """What the processes are to find in their environment."""
    before = dict(os.environ)
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // how.processes)))
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "200")
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""  # that is for `Signals`
    # a machine that joins later would look for the shared store of the first start
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    home = str(Path(devrun.__file__).resolve().parents[1])
    if home not in (*site.getsitepackages(), site.getusersitepackages()):
        paths = [home, os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _met(how: Launch) -> Iterator[None]:
    """What torch says of a meeting that fails, in one line."""
    try:
        yield
    except (RendezvousError, DistError, ValueError) as error:
        cause = error.__cause__ or error
        first = (str(cause).splitlines() or [type(cause).__name__])[0]
        where = how.endpoint or "this machine"
        hint = ""
        if "in use" in str(cause):
            hint = "; another program listens there: take another port"
        raise DeviceUnavailableError(
            f"the processes could not meet at {where}: {first:.200}{hint}"
        ) from error
