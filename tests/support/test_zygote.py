"""What programs from the zygote are, compared with those of a fresh Python."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.support import zygote


@pytest.mark.parametrize("finalize", [False, True])
@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("print('out')", 0, ("out\n", "")),
        ("raise SystemExit(7)", 7, ("", "")),
        ("import sys; sys.exit('no')", 1, ("", "no\n")),
        ("import os; os.kill(os.getpid(), 9)", -9, ("", "")),
        ("import atexit; atexit.register(print, 'late')", 0, ("late\n", "")),
    ],
)
def test_statuses_and_words_are_those_of_python(code, status, said, finalize):
    done = zygote.run(["-c", code], finalize=finalize)
    assert (done.returncode, (done.stdout, done.stderr)) == (status, said)


def test_an_exception_is_told_as_python_does():
    done = zygote.run(["-c", "1 / 0"])
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_program_can_be_talked_to_signalled_and_given_up():
    process = zygote.start(["-c", "while True: print(input() * 2, flush=True)"])
    print("ab", file=process.stdin, flush=True)
    assert process.stdout.readline() == "abab\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.send_signal(signal.SIGTERM)
    process.communicate(30)
    assert process.returncode == -signal.SIGTERM
    with pytest.raises(subprocess.TimeoutExpired):
        zygote.run(["-c", "import time; time.sleep(100)"], timeout=0.2)
