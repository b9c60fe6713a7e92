"""Programs for tests, forked from a Python that has imported torch.

Importing torch takes longer than most programs that tests start. One such process (a
zygote) serves each process of the test run, and what it forks becomes the program.
"""

import atexit
import contextlib
import fcntl
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import traceback
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(arguments, env=None, cwd=None, timeout=60, finalize=False):
    """As subprocess.run of Python with `arguments`; stdout and stderr as text.

    See `start`, and for `finalize` too, which costs more than a short program.
    """
    process = start(arguments, env, cwd, finalize=finalize)
    texts = process.communicate(timeout)
    return subprocess.CompletedProcess(process.args, process.returncode, *texts)


def start(
    arguments,
    env=None,
    cwd=None,
    *,
    stdin=None,
    stdout=None,
    stderr=None,
    finalize=True,
):
    """As subprocess.Popen of Python with `arguments`, in a session of its own.

    `env` is the whole environment; what torch reads of it at import is not seen.
    Streams that are not given, as file descriptors, are pipes; the process has their
    other ends, as text. `finalize`: end as an interpreter does, modules and all;
    without it, threads are joined, exit handlers run, and that is all.
    """
    request = {
        "arguments": [str(argument) for argument in arguments],
        "env": dict(os.environ if env is None else env),
        "cwd": str(cwd or os.getcwd()),
        "finalize": finalize,
    }
    theirs, ours, piped = [stdin, stdout, stderr], [None] * 3, []
    for number, given in enumerate(theirs):
        if given is None:
            pipe = os.pipe()
            own = pipe[number == 0]
            theirs[number] = pipe[number != 0]
            ours[number] = open(own, "r" if number else "w", encoding="utf-8")
            piped.append(theirs[number])
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_zygote())
    socket.send_fds(connection, [b"."], theirs)
    connection.sendall(json.dumps(request).encode() + b"\n")
    for descriptor in piped:
        os.close(descriptor)
    return Process(request["arguments"], connection, *ours)


def free_port():
    """A port that nobody else is given while this process runs.

    It stays bound, without listening: the system hands it out to no other program,
    and one that asks for it by its number, as torch does, may listen on it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    held.detach()  # open until this process ends
    return str(port)


def start_ranks(arguments, cwd=None, count=2, **options):
    """Processes of one program, which find each other as with torchrun."""
    place = {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
    }
    return [
        start(
            arguments,
            {**os.environ, **place, "RANK": rank, "LOCAL_RANK": rank},
            cwd,
            **options,
        )
        for rank in map(str, range(count))
    ]


class Process:
    """A started program; what it offers is as in subprocess.Popen."""

    def __init__(self, args, connection, stdin, stdout, stderr):
        self.args, self.returncode = args, None
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._connection, self._answers = connection, connection.makefile()
        self.pid = int(self._answers.readline())

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def poll(self):
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout=None):
        """The exit status, negative for a signal."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self.returncode

    def communicate(self, timeout=None):
        """What is left to read of stdout and stderr; ends the program if it is late."""
        if self.stdin:
            self.stdin.close()
        outputs = (self.stdout, self.stderr)
        with contextlib.ExitStack() as opened:
            for stream in filter(None, outputs):
                opened.enter_context(stream)
            with ThreadPoolExecutor(2) as pool:
                texts = [stream and pool.submit(stream.read) for stream in outputs]
                try:
                    self.wait(timeout)
                except subprocess.TimeoutExpired:
                    os.killpg(self.pid, signal.SIGKILL)
                    self.wait()
                    raise
        return tuple(text and text.result() for text in texts)


@functools.cache
def _zygote():
    """The address of the one that serves this process, started now."""
    folder = tempfile.mkdtemp(prefix="zygote-")
    address = f"{folder}/socket"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PT_", "DEVRUN_"))}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.zygote", address],
        env=env,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"ready\n"
    atexit.register(process.communicate)  # its input ends, and so does it
    return address


def serve(address):
    """Until the input ends; a request is answered with process id and exit status."""
    import torch  # noqa: F401 - for the children

    gc.freeze()  # what the children share they need not look through
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
    """Start the program that is asked for, and wait: returns in neither process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    request = json.loads(connection.makefile().readline())
    child = os.fork()
    if child == 0:
        connection.close()
        _become(request, streams)
    for stream in (0, *streams):
        os.close(stream)
    connection.sendall(b"%d\n" % child)
    while not _is_closed(connection):  # else the client waits no longer
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            os._exit(0)
    try:
        os.killpg(child, signal.SIGKILL)
    finally:
        os._exit(0)


def _is_closed(connection):
    return bool(select.select([connection], [], [], 0.02)[0])


def _become(request, streams):
    """Run the program and end as it does."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    paths = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    try:
        _execute(request["arguments"])
        sys.exit(0)
    except BaseException as error:
        if request["finalize"]:
            raise
        _end(error)


def _end(error):
    """Without finalization."""
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        traceback.print_exception(type(error), error, error.__traceback__)
    elif not isinstance(code, (int, type(None))):
        print(code, file=sys.stderr)
        code = 1
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _execute(arguments):
    first, *rest = arguments
    if first == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        program = compile(rest[0], "<string>", "exec")
        exec(program, vars(main))  # noqa: S102 - what -c does
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1])
