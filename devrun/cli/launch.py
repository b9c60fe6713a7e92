"""`devrun launch --print KIND CONFIG ...`: a job file for a training, to be edited.

What the user typed reaches a shell quoted, and Kubernetes as JSON with every `$`
doubled, which it would expand.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import devrun
from devrun.cli.exits import Session
from devrun.cli.flags import add_train_flags, overrides, read_config
from devrun.cli.parser import LineParser, at_least
from devrun.config import check_config
from devrun.device_facts import FACTS, DeviceFacts
from devrun.errors import ConfigError

_TEMPLATES = Path(devrun.__file__).parent / "templates" / "jobs"
_FILES = {
    "slurm": "slurm.sh",
    "kubernetes": "kubernetes.yaml",
    "torchrun": "torchrun.sh",
}
_AGAIN = ("overwrite", "resume_from")
_OURS = ("num_devices", "launcher")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, what = parser.add_argument, "slurm, kubernetes or torchrun"
    positive, count = (partial(at_least, least, digits=5) for least in (1, 0))
    add(
        "--print", dest="kind", choices=_FILES, required=True, metavar="KIND", help=what
    )
    add("--nodes", type=positive, default=1, metavar="N", help="machines (1)")
    add("--num-devices", type=positive, default=1, metavar="N", help="of each (1)")
    add("--max-restarts", type=count, default=3, metavar="N", help="by torchrun (3)")
    add("config", metavar="CONFIG", help="a .yaml, .json or .py file")
    add("flags", nargs=argparse.REMAINDER, metavar="...", help="flags of train")


def run(args: argparse.Namespace, session: Session) -> int:
    """Write the file to stdout; the config and the flags are checked as train does."""
    parser = LineParser("devrun train", "")
    add_train_flags(parser)
    if args.config.startswith("-"):
        raise ConfigError(
            f"CONFIG begins with a dash, {args.config!r}: write ./ in front of it"
        )
    try:
        train = parser.parse_args([args.config, *args.flags])
    except SystemExit as stop:  # it has said why
        return int(stop.code or 0)
    _check_flags(train)
    cfg = read_config(train)
    cfg.merge_from_dict(overrides(train, cfg))
    check_config(cfg)
    words = [args.config, *args.flags]
    if not cfg.get("work_dir"):
        words += ["--work-dir", f"work_dirs/{Path(args.config).stem}"]
    if train.resume_from is None:
        words += ["--resume-from", "auto"]
    if any("\ud800" <= char <= "\udfff" for word in words for char in word):
        raise ConfigError("a job file is UTF-8 text, which the name of a file is not")
    sys.stdout.write(_filled(args, cfg, words))
    return 0


def _filled(args: argparse.Namespace, cfg: Any, words: list[str]) -> str:
    """The job file; `words` are those of `devrun train`."""
    device = cfg.get("device") or "auto"
    device = device if isinstance(device, str) else device.get("type", "auto")
    resource = FACTS.get(device.split(":")[0], DeviceFacts()).resource
    workers = (cfg.get("data") or {}).get("workers_per_gpu")
    cpus = 1 + (workers if isinstance(workers, int) else 4)
    start = ["--max-restarts", str(args.max_restarts), "-m", "devrun", "train"]
    pod = [*start, *(w.replace("$", "$$") for w in words), "--launcher", "pytorch"]
    # as SLURM and Kubernetes take it: a to z, 0 to 9 and -
    name = re.sub(r"[^a-z0-9]+", "-", Path(args.config).stem.lower())[:40].strip("-")
    template = (_TEMPLATES / _FILES[args.kind]).read_text(encoding="utf-8")
    return template.format(
        name=f"devrun-{name}".strip("-"),
        nodes=args.nodes,
        processes=args.num_devices,
        restarts=args.max_restarts,
        words=shlex.join(words),
        cpus=cpus,
        gres=f"#SBATCH --gres=gpu:{args.num_devices}\n" if resource else "",
        limits=json.dumps({resource: args.num_devices} if resource else {}),
        args=json.dumps(pod),
    )


def _check_flags(train: argparse.Namespace) -> None:
    """Refuse flags that would not do in a file that is started again and again."""
    for name in (*_AGAIN, *_OURS):
        given = getattr(train, name)
        if given is None or (name in _AGAIN and given in (False, "auto")):
            continue
        why = "is the job file's: give what it is to have before CONFIG"
        if name in _AGAIN:
            why = (
                "would hold at each start of the job, which goes on by --resume-from "
                "auto: leave it out, or set it in the config"
            )
        raise ConfigError(f"--{name.replace('_', '-')} {why}")
