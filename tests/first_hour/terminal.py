"""An environment with the built wheel, and a terminal in it."""

import os
import re
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from tests.support.terminals import drawn, terminal

ROOT = Path(__file__).parents[2]


def environment(place):
    """The folder of programs of a new environment with devrun's wheel.

    The packages that are here are behind it. No index is asked, and the checkout is
    not on its path.
    """
    source = place / "source" / "devrun"
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            copy = ["cp", "-P", str(ROOT / name), str(source / name)]
            subprocess.run(copy, check=True)
    home = place / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (own,) = home.glob("lib/python*/site-packages")
    (own / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
    quiet = ["-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "install", *quiet, str(source)], check=True)
    return home / "bin"


class Terminal:
    """Runs commands in a folder, each on a terminal of its own, and counts them."""

    def __init__(self, programs: Path, folder: Path):
        folder.mkdir(parents=True)
        self.programs, self.folder = programs, folder
        self.commands, self.seconds = 0, 0.0

    def __call__(self, *words: object, cwd: str = ".", status: int = 0) -> str:
        """What was drawn, without colours; AssertionError for another exit status."""
        ours, theirs = terminal(100)
        env = {key: value for key, value in os.environ.items() if "PYTHON" not in key}
        env["PATH"] = f"{self.programs}{os.pathsep}{env['PATH']}"
        program = self.programs / str(words[0])
        began = time.perf_counter()
        process = subprocess.Popen(
            [str(program), *map(str, words[1:])],
            cwd=self.folder / cwd,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        shown = drawn(ours)
        ended = process.wait()
        self.commands += 1
        self.seconds += time.perf_counter() - began
        text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown)
        assert ended == status, text
        return text
