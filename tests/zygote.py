"""A Python that has imported torch and forks for each program that a test starts.

The emulated device changes torch for its whole process, so these tests need many
processes; importing torch takes longer than most of them run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

HERE = Path(__file__)


def run(arguments, env, cwd, timeout):
    """As subprocess.run of Python with `arguments`, with its output as text.

    `env` is the whole environment; what torch reads of it at import is not seen.
    """
    arguments = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        files = {name: f"{folder}/{name}" for name in ("stdout", "stderr")}
        request = {"arguments": arguments, "env": env, "cwd": str(cwd), **files}
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(timeout)
            client.connect(_zygote())
            client.sendall(json.dumps(request).encode() + b"\n")
            try:
                code = client.makefile().readline()
            except TimeoutError as error:
                raise subprocess.TimeoutExpired(arguments, timeout) from error
        texts = [Path(file).read_text("utf-8") for file in files.values()]
    return subprocess.CompletedProcess(arguments, int(code), *texts)


@functools.cache
def _zygote():
    """The address of the one that serves this process, started now."""
    folder = tempfile.mkdtemp(prefix="zygote-")
    address = f"{folder}/socket"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PT_", "DEVRUN_"))}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.zygote", address],
        env=env,
        cwd=HERE.parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    atexit.register(process.communicate)  # its input ends, and so does it
    return address


def serve(address):
    """Until the input ends; the answer to each request is the exit status."""
    import torch  # noqa: F401 - for the children

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while server in (ready := select.select([server, sys.stdin], [], [])[0]):
            connection, _ = server.accept()
            if sys.stdin not in ready and os.fork() == 0:
                server.close()
                _answer(connection)
            connection.close()
    os.unlink(address)
    os.rmdir(os.path.dirname(address))


def _answer(connection):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = json.loads(connection.makefile().readline())
    child = os.fork()
    if child == 0:
        connection.close()
        os._exit(_become(request))
    while not _is_closed(connection):  # else the client waits no longer
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            os._exit(0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os._exit(0)


def _is_closed(connection):
    return bool(select.select([connection], [], [], 0.02)[0])


def _become(request):
    """Run the program; its exit status."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    paths = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    status = 0
    try:
        _execute(request["arguments"])
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            sys.stderr.write(stop.code)
    except BaseException:  # noqa: BLE001 - as the interpreter ends
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _execute(arguments):
    first, *rest = arguments
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        program = compile(rest[0], "<string>", "exec")
        exec(program, {"__name__": "__main__"})  # noqa: S102 - what -c does
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
