"""An evaluation that a subclass of `EvalHook` does itself, as MMCV's libraries do.

Such a `_do_evaluate(self, runner)` calls `self.test_fn(model, loader)`, which is always
there in MMCV, then `self.evaluate(runner, results)` and `self._save_ckpt(runner,
score)`: on several ranks the last two on rank 0 alone, where devrun's need every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from devrun.dist import broadcast_object
from devrun.hooks.evaluation.loop import Steps, collect_predictions, length_of
from devrun.run import Run


def evaluate_own(hook: Any, runner: Run) -> Any:
    """Call the `_do_evaluate` of `hook`; on every rank the score that it saved by.

    It is saved by the caller, after the evaluation has given the model its trained
    weights back.
    """
    scores: list[Any] = []

    def predict(_model: Any, loader: Any, **_options: Any) -> Any:
        return collect_predictions(
            Steps(runner, loader, "predict"), length_of(hook.dataset)
        )

    def judge(_runner: Run, results: Any) -> Any:
        return hook.publish(runner, hook.named_results(runner, results))

    found = {
        "test_fn": hook.test_fn or predict,
        "evaluate": judge,
        "_save_ckpt": lambda _runner, score: scores.append(score),
    }
    with _having(hook, found), runner.evaluating():
        hook._do_evaluate(runner)
    score = scores[-1] if scores else None
    score, hook.key_indicator, hook.rule = broadcast_object(
        (score, hook.key_indicator, hook.rule)
    )
    return score


@contextmanager
def _having(hook: Any, names: dict[str, Any]) -> Iterator[None]:
    """Within, `hook` has these attributes, but for methods that its class overrides."""
    before = dict(vars(hook))
    for name, value in names.items():
        if _is_ours(getattr(type(hook), name, None)):
            vars(hook)[name] = value
    try:
        yield
    finally:
        for name in names:
            vars(hook).pop(name, None)
            if name in before:
                vars(hook)[name] = before[name]


def _is_ours(method: Any) -> bool:
    return method is None or method.__module__.startswith("devrun.")
