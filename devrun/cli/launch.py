"""`devrun launch --print KIND CONFIG ...`: a job file for a training."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from devrun.cli.exits import Session
from devrun.cli.flags import add_train_flags, overrides, read_config
from devrun.cli.parser import LineParser, at_least
from devrun.cli.several import small
from devrun.config import check_config
from devrun.devices.facts import DeviceFacts
from devrun.devices.resolve import FACTS
from devrun.errors import ConfigError
from devrun.parallel import jobs

KINDS = ("slurm", "kubernetes", "torchrun")
_TIME = re.compile(r"\d{1,6}|\d+-\d\d(:\d\d){0,2}|\d{1,4}(:\d\d){1,2}")
_WORD = re.compile(r"[\w.,-]{1,100}")
_IMAGE = re.compile(r"[\w.:/@-]{1,300}")
_AGAIN = ("overwrite", "resume_from")
_WRITERS = {
    "slurm": jobs.slurm,
    "torchrun": jobs.torchrun,
    "TrainJob": jobs.train_job,
    "PyTorchJob": jobs.pytorch_job,
}
_OURS = ("num_devices", "max_restarts", "nnodes", "rdzv_endpoint", "launcher")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--print",
        dest="kind",
        choices=KINDS,
        required=True,
        metavar="KIND",
        help="slurm, kubernetes or torchrun",
    )
    add("--nodes", type=_positive, default=1, metavar="N", help="machines (1)")
    add("--num-devices", type=_positive, default=1, metavar="N", help="of each (1)")
    add("--max-restarts", type=small, default=3, metavar="N", help="of processes (3)")
    add("--name", help="of the job (that of the config)")
    add("--time", type=_matching(_TIME), metavar="T", help="limit, of SLURM: 12:00:00")
    add("--partition", type=_matching(_WORD), metavar="P", help="of SLURM")
    add("--cpus", type=_positive, metavar="N", help="cores of each machine, of SLURM")
    add("--image", type=_matching(_IMAGE), metavar="I", help="of Kubernetes")
    add(
        "--job-kind",
        choices=("TrainJob", "PyTorchJob"),
        default="TrainJob",
        metavar="K",
        help="of Kubernetes: TrainJob (Kubeflow Trainer) or PyTorchJob",
    )
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
    if args.kind == "kubernetes" and not args.image:
        raise ConfigError("--print kubernetes needs --image, one with devrun in it")
    cfg = read_config(train)
    cfg.merge_from_dict(overrides(train, cfg))
    check_config(cfg)
    stem = Path(args.config).stem
    words = [args.config, *args.flags]
    if not cfg.get("work_dir"):
        words += ["--work-dir", f"work_dirs/{stem}"]
    if train.resume_from is None:
        words += ["--resume-from", "auto"]
    device = cfg.get("device") or "auto"
    name = device if isinstance(device, str) else device.get("type", "auto")
    facts = FACTS.get(name.split(":")[0], DeviceFacts())
    if any("\ud800" <= char <= "\udfff" for word in words for char in word):
        raise ConfigError("a job file is UTF-8 text, which the name of a file is not")
    job = jobs.Job(
        args.name or stem,
        tuple(words),
        args.nodes,
        args.num_devices,
        facts.resource,
        facts.resource and "gpu",
        args.max_restarts,
        args.image or "",
        args.time,
        args.partition,
        args.cpus,
    )
    kind = args.job_kind if args.kind == "kubernetes" else args.kind
    sys.stdout.write(_WRITERS[kind](job))
    return 0


def _check_flags(train: argparse.Namespace) -> None:
    """Refuse flags that would not do in a file that is started again and again."""
    for name in _AGAIN:
        if getattr(train, name) not in (None, False, "auto"):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{flag} would hold at each start of the job, which goes on by "
                "--resume-from auto: leave it out, or set it in the config"
            )
    for name in _OURS:
        if getattr(train, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{flag} is the job file's: give what it is to have before CONFIG"
            )


def _positive(text: str) -> int:
    return at_least(1, text, digits=5)


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise argparse.ArgumentTypeError(f"{text!r} cannot be put there")
        return text

    return check
