"""`devrun test CONFIG CHECKPOINT`: how good saved weights are, or how fast."""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from devrun.cli.console import complain, say
from devrun.cli.exits import Session
from devrun.cli.flags import (
    add_config_flags,
    add_device_flags,
    add_progress_flag,
    add_weights_flags,
    import_modules,
    left_out,
    read_config,
    shared_overrides,
    trusted,
)
from devrun.cli.record import write_facts
from devrun.cli.several import launch_command, to_launch
from devrun.cli.summary import listed
from devrun.cli.workdir import (
    WORDS,
    check_checkpoint,
    choose_work_dir,
    chosen_checkpoint,
    holds_run,
    places_of,
)
from devrun.config import DictAction, check_config
from devrun.config.named_sets import named_sets
from devrun.config.revisions import MODULE
from devrun.devices.resolve import set_environment
from devrun.errors import (
    ConfigError,
    StorageError,
    UnsupportedFeatureError,
    nearest,
)
from devrun.files import disk_errors, user_path
from devrun.launched import join_launcher, take_signals
from devrun.text import aligned

SPLITS = ("test", "val")
WEIGHTS = ("evaluated", "trained")
ORDER = ("shuffle", "drop_last", "sampler", "sampler_cfg")
"""Options by which a loader may leave out samples or read them in another order."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `devrun test`; those of `train` about devices are the same."""
    add_shared_arguments(parser)
    add = parser.add_argument
    add("--out", metavar="FILE", help="also write the results: .json")
    other = "in place of the config's evaluation.metric"
    add("--metrics", "--eval", nargs="+", metavar="NAME", help=other)
    add(
        "--metric-options",
        nargs="+",
        action=DictAction,
        metavar="KEY=VALUE",
        help="in place of the config's evaluation.metric_options",
    )
    sizes = "throughput against latency of batches of these sizes, 1 to 128"
    add("--latency", nargs="*", type=int, metavar="N", help=sizes)


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """Those that say what is evaluated, and where."""
    add = parser.add_argument
    add("config", metavar="CONFIG", help="the config that it was trained with")
    add(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a directory, .pth or .safetensors; a work_dir or `latest` for the newest "
        "of a run, `best` for its best",
    )
    add("--split", choices=SPLITS, default="test", help="data.test (default) or val")
    averaged = "evaluated: the averaged ones, where an EMAHook kept some"
    add("--weights", choices=WEIGHTS, default="evaluated", help=averaged)
    add_progress_flag(parser)
    add_weights_flags(parser)
    add_config_flags(parser)
    add_device_flags(parser.add_argument_group("device"))


def run(args: argparse.Namespace, session: Session) -> int:
    """Evaluate as the training did, once, and write nothing but what flags name."""
    check_out("--out", args.out, (".json",), "; devrun predict writes the samples'")
    if launches(args, session, False):
        return 0
    with opened(args, every_sample=False) as (runner, hook, checkpoint):
        if args.latency is not None:
            return _sweep(args, runner, hook, checkpoint)
        found = hook.evaluate_now(runner)
        if runner.rank == 0:
            say(f"{args.split}: {listed(found)}")
            _write(args, checkpoint, found)
    return 0


def _sweep(args: argparse.Namespace, runner: Any, hook: Any, checkpoint: str) -> int:
    """Predict by batches of several sizes; the table, and a file of it."""
    from devrun.rehearsal import latency
    from devrun.tensors import map_tensors

    adapter = runner.adapter
    if adapter.emulated:
        raise UnsupportedFeatureError(
            f"--latency measures times, and {adapter.name} is emulated here, which has "
            "none; measure where the device is"
        )
    sizes = sorted(set(args.latency)) or latency.SIZES
    if sizes[0] < 1:
        raise ConfigError(f"--latency takes sizes of 1 or more, got {sizes[0]}")
    batch = next(iter(next(iter(hook.loaders.values()))))

    def call(given: Any) -> Any:
        step = runner.session.eval_step(given, "predict")
        return map_tensors(lambda value: value.cpu(), step.get("predictions"))

    with runner.evaluating():
        points = latency.sweep(call, batch, sizes)
    say("\n".join(aligned(latency.rows(points), numbers=True)))
    found = {"device": adapter.name, "latency": [asdict(one) for one in points]}
    _write(args, checkpoint, found)
    return 0


def launches(args: argparse.Namespace, session: Session, every_sample: bool) -> bool:
    """Whether this command was to start several processes, which have ended then."""
    join_launcher()
    if to_launch(args):
        launch_command(args, _read(args, every_sample)[0], session.argv, None)
        return True
    take_signals()
    return False


@contextmanager
def opened(
    args: argparse.Namespace, *, every_sample: bool, stage: str | None = None
) -> Iterator[tuple[Any, Any, str]]:
    """The runner with the saved weights, its EvalHook, and the checkpoint's path.

    Args:
        every_sample: read the data sets in their order, and whole.
        stage: what a LightningModule is built for; by default, to judge the split.
    """
    cfg, places, only = _read(args, every_sample)
    if args.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    set_environment()
    checkpoint = chosen_checkpoint(args.checkpoint, places)
    if checkpoint != args.checkpoint:
        complain(f"{args.checkpoint} is {checkpoint}", "note")
    import_modules(args, cfg)
    from devrun.checkpoint import read_checkpoint
    from devrun.checkpoint.mmcv_format import averaged_weights
    from devrun.hooks.evaluation import EvalHook
    from devrun.interop.lightning_trainer import in_stage
    from devrun.log.logger import get_logger
    from devrun.runners.trial import trial

    get_logger(log_level=cfg.get("log_level") or "INFO")
    how: dict[str, Any] = {"initialise": False, "progress": args.progress, "only": only}
    judged = "test" if args.split == "test" else "validate"
    tried = trial(cfg, 0, evaluate=1, **how)
    with trusted(args), in_stage(stage or judged), tried as training:
        runner = training.runner
        runner.load_checkpoint(
            checkpoint,
            strict=True,
            revise_keys=args.revise_keys or MODULE,
            allow_pickle=args.allow_pickle is not None,
        )
        place = user_path(checkpoint)
        if args.weights == "evaluated" and place.is_dir():
            averaged = averaged_weights(read_checkpoint(place, parts=["hooks"]))
            if averaged is not None:
                runner.model.load_state_dict(averaged, strict=False)
                runner.logger.info("evaluated are the averaged weights of its EMAHook")
        (hook,) = (hook for hook in runner.hooks if isinstance(hook, EvalHook))
        yield runner, hook, checkpoint


def _override_metrics(cfg: Any, args: argparse.Namespace) -> None:
    """`--metrics` and `--metric-options`, which `devrun predict` does not have."""
    if metrics := vars(args).get("metrics"):
        metric = metrics[0] if len(metrics) == 1 else metrics
        cfg.merge_from_dict({"evaluation.metric": metric})
    if options := vars(args).get("metric_options"):
        cfg.merge_from_dict({"evaluation.metric_options": options})


def _read(
    args: argparse.Namespace, every_sample: bool
) -> tuple[Any, tuple[Path, ...], str | None]:
    """The config reduced to the evaluation, where its checkpoints are, and the split
    of a data module."""
    if args.allow_pickle not in (None, args.checkpoint):
        raise ConfigError(
            f"--allow-pickle {args.allow_pickle} is not the file that is loaded; name "
            "the CHECKPOINT"
        )
    cfg: Any = read_config(args, args.split)
    if lost := left_out(args, cfg.get("device")):
        complain(lost, "warning")
    cfg.merge_from_dict(shared_overrides(args, cfg))
    _override_metrics(cfg, args)
    check_config(cfg)
    last = choose_work_dir(  # of the run that trained with `cfg`
        cfg.get("work_dir"), Path(args.config).stem, resume_from="auto", overwrite=False
    )
    places = places_of(cfg, last)
    if args.checkpoint not in WORDS and not holds_run(Path(args.checkpoint)):
        check_checkpoint("CHECKPOINT", args.checkpoint)
    only = _reduce(cfg, args.split)
    if every_sample:
        if only is not None:
            raise ConfigError(
                "a data module reads in an order of its own; predictions take data "
                "sets that are named in the config"
            )
        for section in (cfg["data"], cfg["data"]["val_dataloader"]):
            for name in ORDER:
                section.pop(name, None)
    return cfg, places, only


def _reduce(cfg: Any, split: str) -> str | None:
    """Leave of `cfg` what an evaluation of `split` needs.

    The data set of the split stands for all, so that no other has to be there; of a
    data module, what is returned does.
    """
    data = cfg["data"]
    own = "type" in data
    if not own and data.get(split) is None:
        there = [name for name in SPLITS if data.get(name) is not None]
        raise ConfigError(
            f"the config has no data.{split}; "
            + (f"choose --split {there[0]}" if there else nearest(split, data))
        )
    section = f"{split}_dataloader"
    if not own:
        data["val_dataloader"] = copy.deepcopy(data.get(section) or {})
        data["train_dataloader"] = {}
        data["val"] = copy.deepcopy(data[split])
        data["train"] = next(iter(named_sets(copy.deepcopy(data[split])).values()))
    return split if own else None


def check_out(
    flag: str, out: str | None, formats: tuple[str, ...], more: str = ""
) -> None:
    """Refuse a file that could not be written once the evaluation is over.

    A device or a pipe, such as `/dev/stdout`, needs no format in its name.
    """
    if out is None:
        return
    place = user_path(out)
    named = not place.exists() or place.is_file()
    if named and place.suffix not in formats:
        raise ConfigError(
            f"{flag} {out!r} must end in {' or '.join(formats)}, which is how its "
            f"format is chosen{more}"
        )
    if place.is_dir() or not os.access(place.absolute().parent, os.W_OK | os.X_OK):
        raise StorageError(
            f"{flag} {out!r} cannot be written: give a file in a folder that exists "
            "and is writable"
        )


def _write(args: argparse.Namespace, checkpoint: str, found: dict[str, Any]) -> None:
    if args.out is None:
        return
    facts = {
        "config": args.config,
        "checkpoint": checkpoint,
        "weights": args.weights,
        "split": args.split,
        "results": found,
    }
    with disk_errors(f"--out {args.out!r} cannot be written"):
        write_facts(Path(args.out), facts, follow=True)
