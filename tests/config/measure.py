"""How long a configuration takes to read, and with how much memory.

A process of its own, which imports nothing but the reader, forks for each input: what
one input costs is what its child used, and an input that kills the reader is told.
"""

import json
import logging
import os
import resource
import select
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 10
MEMORY = 256 << 20
"""What no input may exceed: of processor time, and of the whole process."""


@dataclass
class Cost:
    """What reading one input took; `outcome` begins with "read" or "refused"."""

    outcome: str
    seconds: float
    memory: int

    @property
    def bounded(self):
        known = self.outcome.startswith(("read", "refused"))
        return known and self.seconds < SECONDS and self.memory < MEMORY


class Meter:
    """`cost(files)`: the first of `files` is the configuration."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.config.measure"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def cost(self, files):
        """The first of three attempts that is within the bounds, or the last.

        Processor time counts the waiting for memory, which neighbours cause too.
        """
        for _ in range(3):
            cost = self._cost(files)
            if cost.bounded:
                break
        return cost

    def _cost(self, files):
        request = json.dumps(files) + "\n"
        self._process.stdin.write(request.encode())
        self._process.stdin.flush()
        return Cost(*json.loads(self._process.stdout.readline()))


def _serve():
    from devrun.config import Config  # noqa: F401 - before the children are forked

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        files = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _read(files, writer)
        os.close(writer)
        outcome = ""
        while select.select([reader], [], [], 60)[0]:
            part = os.read(reader, 1 << 16).decode(errors="replace")
            if not part:
                break
            outcome += part
        os.close(reader)
        _, status, used = os.wait4(child, 0)
        if os.WIFSIGNALED(status):
            outcome = f"killed by signal {os.WTERMSIG(status)}"
        memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1 << 10)
        print(json.dumps([outcome, used.ru_utime + used.ru_stime, memory]), flush=True)


def _read(files, writer):
    """In the child: read, say what came of it, and end."""
    from devrun.config import Config
    from devrun.errors import ConfigError

    resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, text in files.items():
            Path(name).write_text(text, "utf-8", "surrogatepass")
        try:
            Config.fromfile(next(iter(files)), import_custom_modules=False)
            outcome = "read"
        except (ConfigError, ValueError) as error:
            outcome = f"refused: {error}"[:1000]
        except BaseException as error:  # noqa: BLE001 - all of them are outcomes
            outcome = f"{type(error).__name__}: {error}"[:1000]
    os.write(writer, outcome.encode(errors="replace"))
    os._exit(0)


if __name__ == "__main__":
    _serve()
