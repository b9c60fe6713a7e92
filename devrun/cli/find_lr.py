"""`devrun train --find-lr`: which learning rate, by a range test instead of a run."""

from __future__ import annotations

import copy
import io
import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

from devrun.cli.console import say
from devrun.errors import ConfigError
from devrun.files import disk_errors, replace_file

STEPS = 100
NAME = "lr_find"
_WIDTH, _ROWS = 50, 25
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


def find_lr(cfg: Any, work_dir: Path, *, main: bool, **options: Any) -> None:
    """Say which rate is suggested, and write the curve into `work_dir`.

    Args:
        cfg: a checked config.
        main: whether this process writes and speaks.
        options: of `build_training`.
    """
    from devrun.hooks.lr_range import LrRangeHook
    from devrun.runners.lr_range import find_lr as test_range
    from devrun.runners.training import build_training

    training = build_training(_reduced(cfg), validate=False, **options)
    with closing(training.runner) as runner:
        curve = test_range(runner, training.loaders, LrRangeHook(steps=STEPS))
    if not main:
        return
    facts = {**vars(curve), "suggestion": curve.suggestion}
    files = {f"{NAME}.json": _as_json(facts), **_shown(curve)}
    for name, content in files.items():
        path = work_dir / name
        with disk_errors(f"{str(path)!r} cannot be written", "; give --work-dir"):
            work_dir.mkdir(parents=True, exist_ok=True)
            replace_file(path, content, follow=False)
    shown = ", ".join(str(work_dir / name) for name in files)
    tried = f"{len(curve.lr)} updates from {curve.lr[0]:.3g} to {curve.lr[-1]:.3g}"
    if curve.suggestion is None:
        say(f"no learning rate suggested: the loss fell nowhere in {tried} ({shown})")
    else:
        say(f"suggested learning rate: {curve.suggestion:.3g} ({tried}; {shown})")


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


def _shown(curve: Any) -> dict[str, bytes]:
    """The curve as a picture, where matplotlib is installed, else as text."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return {f"{NAME}.txt": _as_text(curve).encode()}
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(
        xscale="log", xlabel="learning rate", ylabel="training loss"
    )
    least = min(filter(math.isfinite, curve.smoothed), default=0.0)
    first = curve.smoothed[0] if math.isfinite(curve.smoothed[0]) else least
    axes.plot(curve.lr, curve.loss, color="0.8", label="each update")
    axes.plot(curve.lr, curve.smoothed, label="smoothed")
    if curve.suggestion is not None:
        axes.axvline(curve.suggestion, color="C3", label=f"{curve.suggestion:.3g}")
    axes.set_ylim(least - 0.1 * abs(first), 1.5 * max(first, least) + 1e-6)
    axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return {f"{NAME}.png": content.getvalue()}


def _as_text(curve: Any) -> str:
    finite = [value for value in curve.smoothed if math.isfinite(value)]
    least, most = min(finite, default=0.0), max(finite, default=0.0)
    lines = ["smoothed training loss by learning rate"]
    every = max(len(curve.lr) // _ROWS, 1)
    for at in range(0, len(curve.lr), every):
        loss, lr = curve.smoothed[at], curve.lr[at]
        share = (loss - least) / (most - least or 1.0) if math.isfinite(loss) else 1.0
        bar = "#" * round(_WIDTH * share)
        lines.append(f"{lr:9.2e} {loss:10.4g} {bar}".rstrip())
    if curve.suggestion is not None:
        lines.append(f"suggested: {curve.suggestion:.3g}")
    return "\n".join(lines) + "\n"
