"""Runs pairs of `pairs.yaml` on the device that is named, and prints the results.

`python -m tests.rehearsal.pairs DEVICE [NAME ...]`; a device that is emulated needs a
process of its own.
"""

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

import yaml

from devrun.cli.main import main
from devrun.registry import DATASETS, HOOKS, MODELS

HERE = Path(__file__).parent
_TABLE = yaml.safe_load((HERE / "pairs.yaml").read_text())
PAIRS = {**_TABLE["planted"], **_TABLE["clean"]}


def device_of(name):
    """That is emulated for it."""
    flags = PAIRS[name].get("compare", "")
    return flags.removeprefix("devices cpu,") if "devices" in flags else "cpu"


def right(name, status, found):
    """Whether the result of a pair names what it should, or nothing."""
    parting = found and found["parting"]
    if "named" not in PAIRS[name]:
        return status == 0 and found is not None and parting is None
    if status != 10:
        return False
    step, kind, start, word = [*PAIRS[name]["named"], "", ""][:4]
    exact = kind in ("activation", "input")  # "" is the model there
    named = parting["name"] == start if exact else parting["name"].startswith(start)
    told = f"{parting['alone']} parts from itself {json.dumps(parting)}"
    return (parting["step"], parting["kind"]) == (step, kind) and named and word in told


def compared(name):
    """The status, the result and what was written on stderr."""
    pair = PAIRS[name]
    first = {**_TABLE["base"], **pair.get("both", {})}
    second = {**first, **pair.get("second", {})}
    for file, cfg in (("first.yaml", first), ("second.yaml", second)):
        Path(file).write_text(yaml.safe_dump({k: v for k, v in cfg.items() if v}))
    one = "compare" in pair or "edit" in pair
    words = ["first.yaml", *([] if one else ["second.yaml"])]
    words += ["--steps", str(pair.get("steps", 2))]
    if "compare" in pair:
        kind, two = pair["compare"].split()
        words += [f"--{kind}", two]
    words += ["--emulate"] if "--devices" in words else ["--device", "cpu"]
    if "edit" not in pair:
        return run(*words)
    status, _, said = run(*words, "--record", "kept")
    assert (status, said) == (0, ""), said
    with program(*pair["edit"]):
        return run(*words, "--against", "kept")


def run(*words):
    """`devrun compare` in this process."""
    out, err = io.StringIO(), io.StringIO()
    words = ["compare", *words, "--import", "dr_planted", "--json"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    text = out.getvalue()
    return status, json.loads(text) if text.startswith("{") else None, err.getvalue()


@contextlib.contextmanager
def program(old="", new=""):
    """Within, the program is that of another commit, and as it was afterwards."""
    text = (HERE / "planted.py").read_text()
    assert old in text, old
    write(text.replace(old, new))
    yield
    write(text)


def write(text):
    sys.modules.pop("dr_planted", None)
    for registry in (DATASETS, HOOKS, MODELS):
        for key, kind in list(registry.module_dict.items()):
            if kind.__module__ == "dr_planted":
                del registry.module_dict[key]
    Path("dr_planted.py").write_text(text)
    importlib.invalidate_caches()


if __name__ == "__main__":
    device, *chosen = sys.argv[1:]
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        write((HERE / "planted.py").read_text())
        for name in chosen or PAIRS:
            if device_of(name) == device:
                print(json.dumps([name, *compared(name)]), flush=True)
        os.chdir(HERE)
