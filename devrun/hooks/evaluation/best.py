"""Which of two scores is better, and the best checkpoint of a run."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devrun.checkpoint.catalog import remove_checkpoint
from devrun.checkpoint.draft import write_pointer
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    StorageError,
    UnknownNameError,
    nearest,
)
from devrun.hooks.checkpoint import saves_in_background
from devrun.run import Run

GREATER_KEYS = (
    "acc", "top", "AR@", "auc", "precision", "mAP", "mDice", "mIoU", "mAcc", "aAcc",
    "recall", "f1", "exact_match", "bleu", "rouge",
)  # fmt: skip
_ROUNDING = 1e-7
LESS_KEYS = ("loss", "perplexity", "ppl", "error")


def keys_of(
    given: str | Sequence[str] | None, default: Sequence[str]
) -> tuple[str, ...]:
    """The keys that were given, one or several, else the `default`."""
    if isinstance(given, str):
        return (given,)
    return tuple(default if given is None else given)


def infer_rule(
    metric: str,
    rule: str | None = None,
    greater_keys: Sequence[str] = GREATER_KEYS,
    less_keys: Sequence[str] = LESS_KEYS,
) -> str:
    """`greater` or `less`: given, or inferred from the metric's name, in any case.

    As in MMCV: a name equal to a key decides before a name that contains one, and
    the greater keys are looked at first. Of `SET/RESULT` the result decides, if it can.

    Raises:
        UnknownNameError: (a KeyError) `rule` is neither of the two.
        ConfigError: it cannot be inferred from the name.
    """
    if rule is not None:
        if rule not in ("greater", "less"):
            hint = nearest(str(rule), ("greater", "less"))
            raise UnknownNameError.of(
                "rule", f"must be 'greater' or 'less', got {rule!r}; {hint}"
            )
        return rule
    greater = [key.lower() for key in greater_keys]
    less = [key.lower() for key in less_keys]
    whole = metric.lower()
    for name in dict.fromkeys((whole.rpartition("/")[2], whole)):
        if name in greater:
            return "greater"
        if name in less:
            return "less"
        if any(key in name for key in greater):
            return "greater"
        if any(key in name for key in less):
            return "less"
    raise ConfigError(
        f"cannot tell from the name {metric!r} whether more is better; give "
        "rule='greater' or rule='less'",
        key="rule",
    )


def is_better(rule: str, score: float, than: float, min_delta: float = 0.0) -> bool:
    """Whether `score` beats `than` by more than `min_delta`; NaN never does.

    A difference within the rounding of a mean of float32 values does not count.
    """
    gain = score - than if rule == "greater" else than - score
    noise = _ROUNDING * abs(than) if math.isfinite(than) else 0.0
    return gain > max(min_delta, noise)


def as_score(name: str, value: Any) -> float:
    """An evaluation result as a number.

    Raises:
        ConfigTypeError: `value` is not a number.
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigTypeError(
            f"the result {name!r} must be one number to compare checkpoints by, got "
            f"{type(value).__name__}"
        ) from None


class BestCheckpoints:
    """Saves a checkpoint when its score is the best, and drops the one before.

    That is removed only when the one that takes its place is complete.
    """

    def __init__(self, out_dir: str | None) -> None:
        self.out_dir = out_dir
        self.entry: tuple[float, str] | None = None
        """(score, name of the checkpoint)."""

    def offer(
        self, runner: Run, metric: str, rule: str, score: float, when: str
    ) -> str | None:
        """Save if `score` is the best; the path of a new checkpoint.

        `when` is the end of its name, such as `epoch_3`. Best score and path are kept
        in `runner.meta["hook_msgs"]`.
        """
        if not math.isfinite(score):
            runner.logger.warning(
                "%s is %s after %s: it cannot be the best", metric, score, when
            )
            return None
        try:
            runner.checkpointer.finish()
        except StorageError as error:
            runner.logger.error("the checkpoint before is not saved: %s", error)
        before, messages = self.entry, runner.meta.setdefault("hook_msgs", {})
        if before is not None and not is_better(rule, score, before[0]):
            return None
        said = dict(messages)
        # known before it is saved: a run resumed from it must know its score
        self.entry = score, f"best_{_file_name(metric)}_{when}"
        best = runner.checkpointer.root(self.out_dir) / self.entry[1]
        messages.update(best_score=score, best_ckpt=str(best))
        done = runner.iter
        try:
            return runner.save_checkpoint(
                self.out_dir,
                name=best.name,
                create_symlink=False,
                background=saves_in_background(runner),
                then=lambda: _replace(best, done, before),
            )
        except BaseException as error:
            self.entry = before
            messages.clear()
            messages.update(said)
            if not isinstance(error, StorageError):
                raise
            runner.logger.error("the best checkpoint is not saved: %s", error)
            return None

    def adopt(self, messages: dict[str, Any], metric: str | None) -> None:
        """Take the best of a resumed run from `hook_msgs`, unless already known.

        A checkpoint that was the best by another metric than `metric` (None: any) is
        not taken.
        """
        if self.entry is None and "best_score" in messages:
            name = os.path.basename(str(messages.get("best_ckpt") or ""))
            if metric is None or name.startswith(f"best_{_file_name(metric)}_"):
                self.entry = float(messages["best_score"]), name


def _replace(best: Path, done: int, before: tuple[float, str] | None) -> None:
    """Once the new one is durable: point at it, remove the one before."""
    write_pointer(str(best.parent), "best", best.name, done)
    # a resumed run may have its best checkpoint elsewhere: it stays there
    old = best.parent / before[1] if before and before[1] else best
    if old != best and old.is_dir():
        remove_checkpoint(str(old))


def _file_name(metric: str) -> str:
    """`metric` as a part of a file name."""
    return re.sub(r"[^\w.+-]", "_", metric, flags=re.ASCII)[:100]
