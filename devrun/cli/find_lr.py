"""`devrun train --find-lr`: which learning rate, by a range test instead of a run."""

from __future__ import annotations

import copy
import json
import math
from contextlib import closing
from typing import Any

from devrun.cli.console import say
from devrun.cli.flags import trusted
from devrun.devices.resolve import set_environment
from devrun.errors import ConfigError
from devrun.files import disk_errors, replace_file
from devrun.log.logger import get_logger

STEPS = 100
FILE = "lr_find.json"
_LEFT_OUT = (
    *("work_dir", "lr_config", "momentum_config", "checkpoint_config", "custom_hooks"),
    *("evaluation", "watchdog", "resume_from", "auto_resume"),
)


def check_flags(args: Any) -> None:
    """Refuse flags that a range test has no use for."""
    for name in ("dry_run", "resume_from", "overwrite"):
        if getattr(args, name):
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"--find-lr and {flag} clash: a range test trains nothing that is "
                "kept; give one of them (its first weights are those of --load-from)"
            )


def find_lr(args: Any, plan: Any) -> int:
    """Say which rate is suggested, and write the curve into the work_dir."""
    get_logger(log_level=plan.cfg.get("log_level") or "INFO" if plan.main else "ERROR")
    set_environment()
    with trusted(args, plan.cfg):
        from devrun.hooks.lr_range import LrRangeHook
        from devrun.runners.lr_range import find_lr as test_range
        from devrun.runners.training import build_training

        training = build_training(
            _reduced(plan.cfg),
            validate=False,
            progress=args.progress,
            allow_pickle=args.allow_pickle,
        )
        with closing(training.runner) as runner:
            curve = test_range(runner, training.loaders, LrRangeHook(steps=STEPS))
    if not plan.main:
        return 0
    facts = {**vars(curve), "suggestion": curve.suggestion}
    path = plan.work_dir / FILE
    with disk_errors(f"{str(path)!r} cannot be written", "; give --work-dir"):
        plan.work_dir.mkdir(parents=True, exist_ok=True)
        replace_file(path, _as_json(facts), follow=False)
    tried = f"{len(curve.lr)} updates from {curve.lr[0]:.3g} to {curve.lr[-1]:.3g}"
    if curve.suggestion is None:
        say(f"no learning rate suggested: the loss fell nowhere in {tried} ({path})")
    else:
        say(f"suggested learning rate: {curve.suggestion:.3g} ({tried}; {path})")
    return 0


def _reduced(cfg: Any) -> Any:
    """Of `cfg`, what one train phase of `STEPS` updates needs."""
    reduced = copy.deepcopy(cfg)
    for name in _LEFT_OUT:
        reduced[name] = None
    runner = reduced.get("runner") or {}
    runner.pop("max_epochs", None)
    runner.update(type="IterBasedRunner", max_iters=STEPS)
    update = reduced.get("optimizer_config") or {}
    update.pop("spike", None)
    update["nonfinite"] = "ignore"  # an exploding loss is what is looked for
    reduced["runner"], reduced["optimizer_config"] = runner, update
    reduced["workflow"], reduced["log_config"] = [["train", 1]], {"hooks": []}
    return reduced


def _as_json(facts: dict[str, Any]) -> bytes:
    plain = {
        key: [v if math.isfinite(v) else None for v in value]
        if isinstance(value, list)
        else value
        for key, value in facts.items()
    }
    return f"{json.dumps(plain)}\n".encode()
