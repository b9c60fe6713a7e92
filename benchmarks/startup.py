"""What devrun adds to a start: import time beyond torch's, and the answer to --help.

python benchmarks/startup.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

PUBLIC = "import devrun; [getattr(devrun, name) for name in devrun.__all__]"
IMPORT = (
    "import time; import torch; a = time.perf_counter(); {}; b = time.perf_counter()"
)
SHOW = "; print(b - a)"


def environment(cache: str) -> dict[str, str]:
    """Compiled modules are kept in `cache`, as an installed package has them."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": cache}


def beyond_torch(code: str, env: dict[str, str]) -> float:
    """Milliseconds that `code` takes in a process that has imported torch."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT.format(code) + SHOW],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout) * 1e3


def wall(env: dict[str, str], *arguments: str) -> float:
    """Milliseconds of a whole `python -m devrun ...`."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "devrun", *arguments],
        env=env,
        capture_output=True,
        check=False,
    )
    return (time.perf_counter() - start) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        env = environment(cache)
        missing = "no_such_config.yaml"
        figures = {
            "import devrun, after torch": lambda: beyond_torch("import devrun", env),
            "every public name, after torch": lambda: beyond_torch(PUBLIC, env),
            "devrun --help": lambda: wall(env, "--help"),
            "devrun train --help": lambda: wall(env, "train", "--help"),
            f"devrun train {missing}": lambda: wall(env, "train", missing),
        }
        for label, figure in figures.items():
            figure()  # compiles
            values = [figure() for _ in range(args.rounds)]
            sys.stdout.write(
                f"{label:<36}{statistics.median(values):8.1f} ms   "
                f"({min(values):.1f} to {max(values):.1f})\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
