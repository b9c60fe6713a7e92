"""Which of two scores is better, and the best few checkpoints of a run."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
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
    "recall", "f1",
)  # fmt: skip
_ROUNDING = 1e-7
LESS_KEYS = ("loss", "perplexity", "ppl", "error")


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
    """Saves a checkpoint when its score is among the best `keep`, and drops the rest.

    A checkpoint is removed only when the one that takes its place is complete.
    """

    def __init__(self, keep: int, out_dir: str | None) -> None:
        self.keep = keep
        self.out_dir = out_dir
        self.entries: list[tuple[float, str]] = []
        """(score, name of the checkpoint), best first."""

    def offer(
        self, runner: Run, metric: str, rule: str, score: float, when: str
    ) -> str | None:
        """Save if `score` is good enough; the path of a new checkpoint.

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
        full = len(self.entries) >= self.keep
        if full and not is_better(rule, score, self.entries[-1][0]):
            return None
        name = f"best_{_file_name(metric)}_{when}"
        before, messages = self.entries, runner.meta.setdefault("hook_msgs", {})
        said = dict(messages)
        ranked = [*(entry for entry in before if entry[1] != name), (score, name)]
        ranked.sort(key=lambda entry: entry[0], reverse=rule == "greater")
        # known before it is saved: a run resumed from it must know its score
        self.entries = ranked[: self.keep]
        best = runner.checkpointer.root(self.out_dir) / self.entries[0][1]
        messages.update(best_score=self.entries[0][0], best_ckpt=str(best))
        try:
            root, first, done = str(best.parent), best.name, runner.iter
            outdated = [name for _, name in ranked[self.keep :]]
            return runner.save_checkpoint(
                self.out_dir,
                name=name,
                create_symlink=False,
                background=saves_in_background(runner),
                then=lambda: _replace(root, first, done, outdated),
            )
        except BaseException as error:
            self.entries = before
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
        if not self.entries and "best_score" in messages:
            name = os.path.basename(str(messages.get("best_ckpt") or ""))
            if metric is not None and not name.startswith(
                f"best_{_file_name(metric)}_"
            ):
                return
            self.entries = [(float(messages["best_score"]), name)]


def _replace(root: str, first: str, done: int, outdated: list[str]) -> None:
    """Once the new one is durable: point at the best, remove the others."""
    write_pointer(root, "best", first, done)
    for old in outdated:
        # a resumed run may have its best checkpoint elsewhere: it stays there
        if old and os.path.isdir(os.path.join(root, old)):
            remove_checkpoint(os.path.join(root, old))


def _file_name(metric: str) -> str:
    """`metric` as a part of a file name."""
    return re.sub(r"[^\w.+-]", "_", metric, flags=re.ASCII)[:100]
