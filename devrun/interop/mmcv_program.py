"""`python -m devrun.interop.mmcv SCRIPT ARGUMENTS`: a program written for MMCV.

The program stays as it is: its arguments, its exit status and its tracebacks are its
own. Without `--device` its runners train where it has put the model, as MMCV's do.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devrun.devices.resolve import define_auto, set_environment
from devrun.errors import DevrunError
from devrun.interop.mmcv_finder import install
from devrun.text import one_line
from devrun.trust import granted

PROGRAM = "python -m devrun.interop.mmcv"


def main(words: Sequence[str]) -> int:
    """Run the program; its exit status, or that of an error which devrun explains."""
    args = _parser().parse_args(words)
    program = [*(args.module or []), *args.script]
    if not program:
        _parser().error(f"nothing to run; for example: {PROGRAM} tools/train.py CONFIG")
    sys.argv[:] = program
    try:
        _say("note", install().described())
        set_environment()
        define_auto(lambda model: _device(args, model))
        with granted(everything=args.trust_config):
            if args.module:
                runpy.run_module(program[0], run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = str(Path(program[0]).resolve().parent)
                runpy.run_path(program[0], run_name="__main__")
    except DevrunError as error:
        _say("error", error)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [--device D [--emulate]] [--trust-config] "
        "[-m MODULE | SCRIPT] [ARGUMENTS]",
        description=(__doc__ or "").partition("\n")[0],
    )
    rest = argparse.REMAINDER  # flags after the program are the program's
    add = parser.add_argument
    add("--device", metavar="D", help="of its runners, whatever it says itself")
    add("--emulate", action="store_true", help="on the emulator of that device")
    add("--trust-config", action="store_true", help="let its configs run code")
    add("-m", dest="module", metavar="MODULE", nargs=rest, help="run a module")
    add("script", metavar="SCRIPT", nargs=rest, help="run a file")
    return parser


def _device(args: argparse.Namespace, model: Any) -> Any:
    """What the flags say, or else the device of the model's first parameter."""
    first = next(iter(model.parameters()), None)
    device = args.device or ("cpu" if first is None else str(first.device))
    return {"type": device, "emulate": True} if args.emulate else device


def _say(kind: str, text: object) -> None:
    sys.stderr.write(f"devrun: {kind}: {one_line(text)}\n")
    sys.stderr.flush()
