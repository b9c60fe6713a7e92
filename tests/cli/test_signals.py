import os
import signal
import subprocess
import sys

import pytest

from devrun.cli.signals import StopSignals


class Loop:
    """Stands where a runner stands: it can be asked to stop."""

    reason = None

    def request_stop(self, reason, *, alone=False):
        self.reason = reason


EARLY = """
import signal, sys
from devrun.cli.signals import StopSignals
tell = lambda status, text: print(status, text, flush=True)
with StopSignals([tell]):
    try:  # an import or a constructor that goes on whatever is raised in it
        signal.raise_signal(signal.Signals[sys.argv[1]])
    except BaseException:
        pass
raise SystemExit("still here")
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_start_that_swallows_exceptions_is_interrupted_all_the_same(name, code):
    words = [sys.executable, "-c", EARLY, name]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = f"stopped by {name} before the first iteration"
    assert (done.returncode, done.stdout) == (code, f"{code} {said}\n")
    assert done.stderr == f"devrun: interrupted: {said}\n"


def test_the_handlers_of_before_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


SECOND = """
import multiprocessing, signal, time
from devrun.cli.signals import StopSignals
class Loop:
    def request_stop(self, reason, alone): pass
def died(*_): raise RuntimeError("a worker died")
signal.signal(signal.SIGCHLD, died)  # as torch does
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(100,))
worker.start()
print(worker.pid, flush=True)
tell = lambda status, text: print(status, text, flush=True)
with StopSignals([tell]) as signals:
    signals.attach(Loop())
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
raise SystemExit("still here")
"""


def test_the_second_signal_is_recorded_and_leaves_at_once():
    done = subprocess.run(
        [sys.executable, "-c", SECOND], capture_output=True, text=True, check=False
    )
    assert done.returncode == 143
    assert "still here" not in done.stderr
    worker, told = done.stdout.splitlines()
    assert told == "143 SIGTERM again: left at once"
    with pytest.raises(ProcessLookupError):  # a data worker must not stay behind
        os.kill(int(worker), 0)


def test_a_forked_worker_dies_of_the_signal_as_it_would_without_us():
    loop = Loop()
    with StopSignals() as signals:
        signals.attach(loop)
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)  # only reached when the handler swallowed the signal
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM
    assert loop.reason is None


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_what_was_ignored_before_stays_ignored(name):
    number = signal.Signals[name]
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            signals.attach(Loop())
            signal.raise_signal(number)
            assert signals.received is None
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
