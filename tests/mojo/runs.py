"""Commands on Modular's device, and what a run logged."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def devrun_in(folder, command, config, *words):
    """`devrun COMMAND CONFIG ...` with the models and the data of `soft_targets`."""
    flags = [command, config, "--import", "soft_targets", *words]
    return subprocess.run(
        [sys.executable, "-m", "devrun", *flags],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
        },
        capture_output=True,
        text=True,
    )


def losses(folder):
    (log,) = folder.glob("*.log.json")
    rows = map(json.loads, log.read_text().splitlines())
    return [row["loss"] for row in rows if row.get("mode") == "train"]
