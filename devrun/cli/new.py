"""`devrun new DIR --like KIND`: a project that trains at once."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from pathlib import Path

import devrun
from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.errors import ConfigError
from devrun.files import disk_errors, user_path

KINDS = ("digits", "text", "images", "lightning", "mmcv", "device")
_TEMPLATES = Path(devrun.__file__).parent / "templates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="a new or an empty folder")
    what = "what it trains, or the package of a device (digits)"
    parser.add_argument("--like", choices=KINDS, default="digits", help=what)


def run(args: argparse.Namespace, session: Session) -> int:
    """Write model, data, config, test and README, and say the next command."""
    folder = user_path(args.folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{args.folder!r} is there already; name a new folder")
    parts = ("device",) if args.like == "device" else ("common", args.like)
    left_out = shutil.ignore_patterns("__pycache__")
    with disk_errors(f"cannot write {args.folder!r}"):
        for part in parts:
            shutil.copytree(
                _TEMPLATES / part, folder, ignore=left_out, dirs_exist_ok=True
            )
    files = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.*"))
    readme = (folder / "README.md").read_text(encoding="utf-8")
    written = r"^ *((?:pip install . && )?devrun train .*)"
    command = re.findall(written, readme, re.MULTILINE)[0]
    say(f"wrote {', '.join(files)}")
    say(f"next: cd {shlex.quote(args.folder)}; {command}")
    return 0
