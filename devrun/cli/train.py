"""`devrun train CONFIG`: from the command line to a finished run and its record."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devrun.cli.console import complain, say
from devrun.cli.exits import Session
from devrun.cli.flags import (
    add_train_flags,
    import_modules,
    left_out,
    overrides,
    read_config,
    trusted,
)
from devrun.cli.lost import crash_stacks
from devrun.cli.record import RunRecord, git_revision, versions
from devrun.cli.several import launch_command, to_launch
from devrun.cli.signals import StopSignals
from devrun.cli.summary import masked, results, summary
from devrun.cli.workdir import (
    check_checkpoint,
    choose_work_dir,
    claim,
    keep_aside,
    make_writable,
)
from devrun.config import check_config
from devrun.devices.resolve import set_environment
from devrun.dist import check_launcher, launched
from devrun.errors import DevrunError, StorageError
from devrun.launched import join_launcher, take_signals, tell_launcher
from devrun.lock import unlock_directory
from devrun.log.logger import get_logger

add_arguments = add_train_flags

DRY_UPDATES = 2
"""Of a dry run."""
SANITY_BATCHES = 2
"""Of the evaluation, before the first update."""


@dataclass
class Plan:
    """What is known of a run before torch is imported."""

    cfg: Any
    work_dir: Path
    timestamp: str
    main: bool
    """Whether this process writes the files and messages of the run."""
    left_out: str | None
    """What to say of options that the flags leave out."""


def run(args: argparse.Namespace, session: Session) -> int:
    """Train; the config is checked before anything slow is imported."""
    if args.sweep:
        from devrun.cli.sweep import sweep

        return sweep(args, session.argv)
    join_launcher()
    launches = to_launch(args)
    plan = _plan(args)
    if (plan.cfg.get("benchmark") or {}).get("runs", 1) > 1 and not args.dry_run:
        from devrun.cli.benchmark import benchmark

        return benchmark(args, session.argv, plan.cfg)
    if launches:
        if not args.dry_run:
            # before rank 0 would find it, and end the rest
            make_writable(plan.work_dir)
        return launch_command(args, plan.cfg, session.argv, str(plan.work_dir))
    with StopSignals(session.on_failure) as signals, trusted(args):
        take_signals()
        try:
            return _train(args, plan, session, signals)
        finally:
            if session.work_dir is not None:
                unlock_directory(session.work_dir)


def _plan(args: argparse.Namespace) -> Plan:
    cfg = read_config(args)
    lost = left_out(args, cfg.get("device"))
    cfg.merge_from_dict(overrides(args, cfg))
    check_config(cfg)
    for key in ("resume_from", "load_from"):
        if cfg.get(key):
            check_checkpoint(key, cfg[key])
    work_dir = choose_work_dir(
        cfg.get("work_dir"),
        Path(args.config).stem,
        resume_from=cfg.get("resume_from"),
        overwrite=args.overwrite or args.dry_run,
    )
    cfg.merge_from_dict({"work_dir": str(work_dir)})
    if args.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    check_launcher(cfg.get("launcher") or "none")
    main = not launched() or os.environ.get("RANK", "0") == "0"
    return Plan(cfg, work_dir, time.strftime("%Y%m%d_%H%M%S"), main, lost)


def _train(
    args: argparse.Namespace, plan: Plan, session: Session, signals: StopSignals
) -> int:
    if plan.main and sys.stderr.isatty():
        complain(f"{args.config}; importing PyTorch", "training")
    writes = plan.main and not args.dry_run
    if writes:
        _prepare_files(args, plan, session)
    session.cleanup.enter_context(crash_stacks(session.log_file))
    level = plan.cfg.get("log_level") or "INFO" if plan.main else "ERROR"
    logger = get_logger(log_file=session.log_file, log_level=level)
    if plan.left_out:
        logger.warning("%s", plan.left_out)
    facts = {
        "command": shlex.join(masked(["devrun", *session.argv])),
        "work_dir": str(plan.work_dir),
        "timestamp": plan.timestamp,
        "git": git_revision(),
        "versions": versions(),
    }
    record = RunRecord(plan.work_dir / "run.json" if writes else None, facts)
    session.on_failure.append(record.fail)
    set_environment(fast=plan.cfg.get("performance") is not None)
    import_modules(args, plan.cfg)  # the command line may have changed the list
    from torch.autograd import set_detect_anomaly

    from devrun.hooks.simple import OUT_OF_TIME
    from devrun.log.env import brief
    from devrun.models.layers import layers_of

    session.cleanup.enter_context(set_detect_anomaly(args.detect_anomaly))
    with _built(args, plan) as training:
        runner = training.runner
        runner.timestamp = plan.timestamp
        record.write(
            device={"name": runner.adapter.name, "emulated": runner.adapter.emulated},
            seed=runner.seed,
            world_size=runner.world_size,
        )
        logger.info("environment: %s, seed %d", brief(), runner.seed)
        if args.summary and plan.main:
            say(layers_of(runner.model))
        signals.attach(runner)
        _tell_hangs(runner, record, signals)
        training.run()
        late = str(runner.stop_reason).startswith(OUT_OF_TIME)
        if signals.stopped(runner.stop_reason) or (late and _saves(runner, plan.cfg)):
            record.write(stopped=runner.state.why_ended)
            reached = f"{runner.epoch} epochs and {runner.iter} iterations"
            raise signals.interruption(reached, _save(runner, plan.cfg))
        found = results(runner, plan.work_dir, plan.timestamp)
        record.finish("done", 0, **found)
        if plan.main:
            say(summary(record.facts, plan.work_dir, dry_run=args.dry_run))
    return 0


@contextmanager
def _built(args: argparse.Namespace, plan: Plan) -> Iterator[Any]:
    """The training, or a dry run of it; closed afterwards."""
    from devrun.runners.training import build_training
    from devrun.runners.trial import trial

    how: dict[str, Any] = {"progress": args.progress, "allow_pickle": args.allow_pickle}
    validate = not args.no_validate
    if args.dry_run:
        how.update(evaluate=int(validate), save=True, weights=True)
        with trial(plan.cfg, DRY_UPDATES, **how) as training:
            yield training
    else:
        sanity = 0 if args.no_sanity else SANITY_BATCHES
        training = build_training(plan.cfg, validate=validate, sanity=sanity, **how)
        with closing(training.runner):
            yield training


def _prepare_files(args: argparse.Namespace, plan: Plan, session: Session) -> None:
    """Claim the work_dir, set aside what is there, write the resolved config."""
    moved = claim(plan.work_dir, overwrite=args.overwrite)
    if moved is not None:
        complain(f"the run that was in {plan.work_dir} is now in {moved}", "note")
    session.work_dir = plan.work_dir
    session.log_file = plan.work_dir / f"{plan.timestamp}.log"
    new = plan.work_dir / ".config.yaml"
    # before the old one makes way: the disk may be full
    plan.cfg.dump(new, follow=False)
    for name in ("config.yaml", "run.json"):
        keep_aside(plan.work_dir / name)
    new.replace(plan.work_dir / "config.yaml")


def _save(runner: Any, cfg: Any) -> str | None:
    """Where the run that a signal stopped is saved; None if it was not to be saved."""
    if not _saves(runner, cfg):
        return None
    try:
        runner.checkpointer.finish()
    except StorageError as error:  # it is tried once more below
        complain(str(error), "warning")
    if runner.checkpointer.last_saved_iter == runner.iter:
        last = runner.meta.get("hook_msgs", {}).get("last_ckpt")
        return str(last or f"after {runner.iter} iterations")
    return str(runner.save_checkpoint(background=False))


def _saves(runner: Any, cfg: Any) -> bool:
    return runner.work_dir is not None and bool(cfg.get("checkpoint_config"))


def _tell_hangs(runner: Any, record: RunRecord, signals: StopSignals) -> None:
    """Write the last messages before the watchdog ends a hanging process."""
    from devrun.hooks.watchdog import WatchdogHook

    def tell(error: DevrunError) -> None:
        record.fail(error.exit_code, str(error))
        if not tell_launcher(error.exit_code, str(error)):
            complain(str(error))

    for hook in runner.hooks:
        if isinstance(hook, WatchdogHook):
            hook.on_hang.append(tell)
