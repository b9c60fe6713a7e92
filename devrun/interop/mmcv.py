"""Code written for MMCV 1.x on devrun: from this import on, `mmcv.runner` is devrun's.

    import devrun.interop.mmcv
    from mmcv.runner import HOOKS, EpochBasedRunner, Hook      # devrun's
    from mmcv.cnn import ConvModule                            # MMCV's, if installed

It holds in this process, from before the first import of `mmcv`. What asks for it is
the program, `devrun train --mmcv`, or `python -m devrun.interop.mmcv SCRIPT`; a config
cannot. A module and no package: those who look for packages import them.

A program that is run so stays as it is: its arguments, its exit status and its
tracebacks are its own. Without `--device` its runners train where it has put the model,
as MMCV's do.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devrun.errors import DevrunError
from devrun.interop.mmcv_finder import install
from devrun.text import one_line
from devrun.trust import granted

PROGRAM = "python -m devrun.interop.mmcv"


def main(words: Sequence[str]) -> int:
    """Run the program; its exit status, or that of an error which devrun explains."""
    from devrun.devices.resolve import define_auto, set_environment

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
    usage = f"{PROGRAM} [--device D [--emulate]] [--trust-config] "
    parser = argparse.ArgumentParser(
        prog=PROGRAM, usage=f"{usage}[-m MODULE | SCRIPT] [ARGUMENTS]"
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
install()
