"""`EvalHook`: evaluates now and then, and keeps the best checkpoints."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NoReturn

from devrun.checkpoint.storage import check_possible, check_writable
from devrun.dist import broadcast_tensors, on_main
from devrun.errors import (
    ConfigError,
    ConfigTypeError,
    UnknownNameError,
    UnsupportedFeatureError,
    nearest,
)
from devrun.hooks.base import HOOKS, Hook, Priority
from devrun.hooks.evaluation.best import (
    GREATER_KEYS,
    LESS_KEYS,
    BestCheckpoints,
    as_score,
    infer_rule,
)
from devrun.hooks.evaluation.checks import (
    check_schedule,
    check_shares,
    dataset_of,
    judged,
    keys_of,
)
from devrun.hooks.evaluation.loop import (
    Steps,
    collect_predictions,
    evaluate_means,
    length_of,
)
from devrun.hooks.logger.base import LoggerHook, plain_number
from devrun.hooks.timer import exclude_time
from devrun.metrics.base import StatefulMetric
from devrun.metrics.build import build_metrics
from devrun.run import Run

__all__ = ["EvalHook"]


@HOOKS.register_module()
class EvalHook(Hook):
    """Evaluates on `dataloader` and puts the results into the log.

    When: every `interval` epochs (or iterations); with `start`, first at `start`, then
    at `start + interval`, ..., and once before training if a run begins at or after
    `start`. That first one is logged, but never a best checkpoint.

    How, the first that applies:

    1. `test_fn(model, loader)`, whose results go to the data set's `evaluate`; where
       it has none, they are a dict of named results;
    2. a data set with `evaluate(results, logger=..., **eval_kwargs)` gets the
       prediction of each sample;
    3. else the mean over all samples of what the model logs (`loss` at least) and
       `metric=`: a name in METRICS such as `accuracy` or `top5`, a dict with a `type`
       such as `torchmetrics.F1Score`, or a list of these.

    Args:
        dataloader: a DataLoader; on several ranks each takes its share of it.
        start, interval, by_epoch: see above.
        save_best: name of the result by which the best checkpoint
            `best_NAME_epoch_N` (or `_iter_N`) is kept, or `auto` for the first one.
        rule: `greater` or `less`; inferred from the name if not given, which
            `greater_keys` and `less_keys` (in place of the built-in ones) help with.
        out_dir: of the best checkpoints; where the runner puts them by default.
        file_client_args: of MMCV's remote storage; must be None.
        max_keep_best: how many of the best are kept.
        eval_kwargs: for the data set's `evaluate`.

    Raises:
        ConfigError: an argument cannot be used; `save_best` names no result (raised
            after the first batch where the results are known by then).
        DataError: there is nothing to evaluate on.
    """

    priority: Any = Priority.LOW
    broadcast_bn_buffer = True
    """Whether all ranks evaluate with the BatchNorm statistics of rank 0."""
    _default_greater_keys: Sequence[str] = GREATER_KEYS
    _default_less_keys: Sequence[str] = LESS_KEYS
    # MMCV's names: subclasses put those of their own metrics there.

    def __init__(
        self,
        dataloader: Any,
        start: int | None = None,
        interval: int = 1,
        by_epoch: bool = True,
        save_best: str | None = None,
        rule: str | None = None,
        test_fn: Callable[..., Any] | None = None,
        greater_keys: str | Sequence[str] | None = None,
        less_keys: str | Sequence[str] | None = None,
        out_dir: str | os.PathLike[str] | None = None,
        file_client_args: Mapping[str, Any] | None = None,
        *,
        max_keep_best: int = 1,
        **eval_kwargs: Any,
    ) -> None:
        check_schedule(start, interval, by_epoch, max_keep_best)
        if file_client_args is not None:
            raise UnsupportedFeatureError.of(
                "file_client_args", "is not supported: give out_dir a local path"
            )
        if save_best is not None and not isinstance(save_best, str):
            raise ConfigTypeError.of(
                "save_best", f"must be a name or None, got {save_best!r}"
            )
        if test_fn is not None and not callable(test_fn):
            raise ConfigTypeError.of("test_fn", f"must be a function, got {test_fn!r}")
        self.dataset = dataset_of(dataloader)
        self.dataloader = dataloader
        self.start, self.interval, self.by_epoch = start, interval, by_epoch
        self.save_best, self.test_fn = save_best, test_fn
        self.greater_keys = keys_of(
            "greater_keys", greater_keys, self._default_greater_keys
        )
        self.less_keys = keys_of("less_keys", less_keys, self._default_less_keys)
        self.eval_kwargs = eval_kwargs
        self.metrics: list[Any] = []
        if test_fn is None and not callable(getattr(self.dataset, "evaluate", None)):
            self.metrics = self._built_metrics(dict(eval_kwargs))
        self.key_indicator = save_best
        self.rule = rule
        if save_best is not None and (save_best != "auto" or rule is not None):
            known = "loss" if save_best == "auto" else save_best
            self.rule = infer_rule(known, rule, self.greater_keys, self.less_keys)
        self.best = BestCheckpoints(
            max_keep_best, None if out_dir is None else os.fspath(out_dir)
        )
        self.initial_flag = start is not None
        self.evaluated_at: tuple[int, int] | None = None
        """(epoch, iter) of the runner at the last evaluation."""

    def get_triggered_stages(self) -> list[str]:
        idle = "iter" if self.by_epoch else "epoch"
        skipped = {f"before_train_{idle}", f"after_train_{idle}"}
        if not self.initial_flag:  # nothing to pay for in every iteration
            skipped |= {"before_train_epoch", "before_train_iter"}
        return [s for s in super().get_triggered_stages() if s not in skipped]

    def prepare_dry_run(self) -> bool:
        if self.best.out_dir is not None:
            check_possible(self.best.out_dir)
            self.best.out_dir = None
        return True

    def before_run(self, runner: Run) -> None:
        self._check_shares(runner)
        if self.save_best is not None:
            known = None if self.key_indicator == "auto" else self.key_indicator
            root = runner.checkpointer.root(self.best.out_dir)
            on_main(lambda: check_writable(root))
            self.best.adopt(runner.meta.setdefault("hook_msgs", {}), known)
        limit = runner.max_epochs if self.by_epoch else runner.max_iters
        first = self.interval if self.start is None else self.start
        if self.test_fn is None and (limit is None or first <= limit):
            runner.expect_evaluation(self.dataloader, self._mode)

    def before_train_epoch(self, runner: Run) -> None:
        if self.by_epoch:
            self._evaluate_first(runner, runner.epoch)

    def before_train_iter(self, runner: Run) -> None:
        if not self.by_epoch and self.initial_flag:
            self._evaluate_first(runner, runner.iter)

    def after_train_epoch(self, runner: Run) -> None:
        if self.by_epoch and self._should_evaluate(runner):
            self._do_evaluate(runner)

    def after_train_iter(self, runner: Run) -> None:
        if self.by_epoch or not self._should_evaluate(runner):
            return
        # Training values first, in a record of their own.
        for hook in runner.hooks:
            if isinstance(hook, LoggerHook):
                hook.after_train_iter(runner)
        runner.log_buffer.clear()
        self._do_evaluate(runner)

    def evaluate_now(self, runner: Run) -> dict[str, Any]:
        """The named results of one evaluation outside of a run; nothing is logged."""
        self._check_shares(runner)
        self._do_evaluate(runner, save=False)
        named = dict(runner.log_buffer.output)
        runner.log_buffer.clear_output()
        named.pop("eval_iter_num", None)
        return named

    def evaluate(self, runner: Run, results: Any) -> Any:
        """Results of each sample -> score to compare by, all values in the log buffer.

        `results` may also be the named values themselves. On several ranks, those of
        rank 0 count.
        """

        def named() -> dict[str, Any]:
            if not callable(getattr(self.dataset, "evaluate", None)):
                if isinstance(results, Mapping):
                    return dict(results)
                raise ConfigError(
                    f"test_fn gave {type(results).__name__}: return a dict of named "
                    f"results, or give {type(self.dataset).__name__} an `evaluate`"
                )
            return dict(judged(self.dataset, results, runner.logger, self.eval_kwargs))

        return self._publish(runner, on_main(named))

    def state_dict(self) -> dict[str, Any]:
        """Scores and names of the best checkpoints, and the metric they go by."""
        if self.save_best is None:
            return {}
        return {
            "best": [[score, name] for score, name in self.best.entries],
            "key_indicator": self.key_indicator,
            "rule": self.rule,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the best of the run that saved, if it went by the same metric."""
        if self.save_best not in ("auto", state["key_indicator"]):
            return
        self.best.entries = [(float(score), str(name)) for score, name in state["best"]]
        self.key_indicator, self.rule = state["key_indicator"], state["rule"]

    def _evaluate_first(self, runner: Run, position: int) -> None:
        """Evaluation before training; logged at once: an epoch clears the buffer."""
        due = self.initial_flag and self.start is not None and position >= self.start
        self.initial_flag = False
        if not due:
            return
        self._do_evaluate(runner, save=False)
        for hook in runner.hooks:
            if isinstance(hook, LoggerHook) and runner.log_buffer.ready:
                hook.log_now(runner, step=runner.iter, mode="val", epoch=runner.epoch)
        runner.log_buffer.clear_output()

    def _check_shares(self, runner: Run) -> None:
        if runner.world_size > 1:
            check_shares(runner.prepare_eval_loader(self.dataloader))

    def _should_evaluate(self, runner: Run) -> bool:
        done = (runner.epoch if self.by_epoch else runner.iter) + 1
        if self.start is None:
            return done % self.interval == 0
        return done >= self.start and (done - self.start) % self.interval == 0

    def _do_evaluate(self, runner: Run, *, save: bool = True) -> None:
        began = perf_counter()
        if self.broadcast_bn_buffer:  # a rank's own ones saw only its samples
            broadcast_tensors(
                buffer
                for module in runner.model.modules()
                if getattr(module, "track_running_stats", False)
                for buffer in module.buffers(recurse=False)
            )
        score = self._score(runner)
        # None also when there were no results; a warning said so
        if save and self.save_best is not None and score is not None:
            self._save_ckpt(runner, score)
        exclude_time(runner, perf_counter() - began)

    def _score(self, runner: Run) -> Any:
        with runner.evaluating():
            if self.test_fn is not None:
                results = self._call_test_fn(runner, self.test_fn)
                batches = length_of(self.dataloader) or 0
            else:
                steps = Steps(runner, self.dataloader, self._mode)
                if self._mode == "predict":
                    results = collect_predictions(steps, length_of(self.dataset))
                else:
                    results = evaluate_means(steps, self.metrics, self._check_names)
                batches = steps.batches
        runner.log_buffer.output["eval_iter_num"] = batches
        return self.evaluate(runner, results)

    @property
    def _mode(self) -> str:
        """A data set that judges for itself gets predictions, without a loss."""
        judges = callable(getattr(self.dataset, "evaluate", None))
        return "predict" if judges else "val"

    def _call_test_fn(self, runner: Run, test_fn: Callable[..., Any]) -> Any:
        return test_fn(runner.model, runner.prepare_eval_loader(self.dataloader))

    def _publish(self, runner: Run, named: Mapping[str, Any]) -> Any:
        self.evaluated_at = (runner.epoch, runner.iter)
        output = runner.log_buffer.output
        for name, value in named.items():
            output[name] = plain_number(value)
        runner.log_buffer.ready = True
        if self.save_best is None:
            return None
        if not named:
            runner.logger.warning(
                "the evaluation gave no results: no best checkpoint this time"
            )
            return None
        if self.key_indicator == "auto":
            self.key_indicator = next(iter(named))
            self.rule = infer_rule(
                self.key_indicator, self.rule, self.greater_keys, self.less_keys
            )
        if self.key_indicator not in named:
            self._refuse(set(named))
        return named[str(self.key_indicator)]

    def _check_names(self, names: set[str]) -> None:
        """Refuse early a `save_best` that cannot be among the results."""
        open_ended = any(isinstance(metric, StatefulMetric) for metric in self.metrics)
        if not open_ended and self.key_indicator not in (None, "auto", *names):
            self._refuse(names)

    def _refuse(self, names: set[str]) -> NoReturn:
        raise UnknownNameError(
            f"save_best={self.key_indicator!r} is not a result of the evaluation; "
            f"there are: {', '.join(sorted(names))}; name one of these, or 'auto'"
        )

    def _save_ckpt(self, runner: Run, key_score: Any) -> None:
        metric, rule = str(self.key_indicator), str(self.rule)
        done = (runner.epoch if self.by_epoch else runner.iter) + 1
        when = f"{'epoch' if self.by_epoch else 'iter'}_{done}"
        score = as_score(metric, key_score)
        path = self.best.offer(runner, metric, rule, score, when)
        if path is not None and self.best.entries[0][1] == os.path.basename(path):
            runner.logger.info(
                "Best %s is %.4f at %s, saved as %s", metric, score, when, path
            )

    def _built_metrics(self, kwargs: dict[str, Any]) -> list[Any]:
        metric = kwargs.pop("metric", None)
        if kwargs:
            wrong = next(iter(kwargs))
            accepted = list(inspect.signature(EvalHook).parameters)[1:-1]
            raise ConfigTypeError(
                f"evaluation got an unexpected {wrong!r}; "
                f"{nearest(wrong, ['metric', *accepted])} (only a data set with "
                f"`evaluate` takes others, {type(self.dataset).__name__} has none)"
            )
        return build_metrics(metric)
