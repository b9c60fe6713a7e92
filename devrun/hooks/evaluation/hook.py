"""`EvalHook`: evaluates now and then, and keeps the best checkpoints."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from time import perf_counter
from typing import Any, Callable

from devrun.checkpoint.storage import check_possible, check_writable
from devrun.config.numbers import whole_number
from devrun.dist import broadcast_object, on_main
from devrun.errors import UnknownNameError
from devrun.hooks.base import Hook, Priority
from devrun.hooks.evaluation.best import (
    GREATER_KEYS,
    LESS_KEYS,
    BestCheckpoints,
    as_score,
    infer_rule,
    keys_of,
)
from devrun.hooks.evaluation.loop import (
    Steps,
    check_set_names,
    check_shares,
    collect_predictions,
    dataset_of,
    evaluate_means,
    judged,
    judges,
    length_of,
    metrics_of,
)
from devrun.hooks.logger.hook import LoggerHook, plain_number
from devrun.hooks.processes import share_statistics
from devrun.hooks.timer import exclude_time
from devrun.metrics import set_metrics
from devrun.registry import HOOKS
from devrun.run import Run


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

    Several sets are evaluated one after the other. Their results are named
    `SET/RESULT`; `dataloader` and `dataset` are those of the set in turn.

    Args:
        dataloader: a DataLoader, or a dict of them by the names of their sets; on
            several ranks each takes its share.
        start, interval, by_epoch: see above.
        save_best: name of the result by which the best checkpoint
            `best_NAME_epoch_N` (or `_iter_N`) is kept, or `auto` for the first one.
        rule: `greater` or `less`; inferred from the name if not given, which
            `greater_keys` and `less_keys` (in place of the built-in ones) help with.
        out_dir: of the best checkpoints; where the runner puts them by default.
        at_end: evaluate after the last epoch (or iteration) too, as MMEngine does.
        generate: arguments of `Generation`, whose metrics are results too.
        eval_kwargs: for the data set's `evaluate`.

    Raises:
        ConfigError: an argument cannot be used; `save_best` names no result (raised
            after the first evaluation).
        DataError: there is nothing to evaluate on.
    """

    priority: Any = Priority.LOW
    broadcast_bn_buffer = True
    """Whether all ranks evaluate with the BatchNorm statistics of rank 0."""
    _default_greater_keys: Sequence[str] = GREATER_KEYS
    _default_less_keys: Sequence[str] = LESS_KEYS
    # MMCV's names: subclasses put those of their own metrics there.
    tries_first = 0
    """Batches of each set that are evaluated before a new run's first update."""

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
        *,
        at_end: bool = False,
        generate: Mapping[str, Any] | None = None,
        **eval_kwargs: Any,
    ) -> None:
        whole_number("start", 0 if start is None else start, least=0)
        whole_number("interval", interval)
        sets = dataloader if isinstance(dataloader, Mapping) else {"": dataloader}
        check_set_names(sets, save_best)
        self.loaders: dict[str, Any] = dict(sets)
        datasets = [dataset_of(loader) for loader in sets.values()]
        self._set = next(iter(sets))
        self.start, self.interval, self.by_epoch = start, interval, by_epoch
        self.save_best, self.test_fn, self.at_end = save_best, test_fn, at_end
        self.greater_keys = keys_of(greater_keys, self._default_greater_keys)
        self.less_keys = keys_of(less_keys, self._default_less_keys)
        self.eval_kwargs = eval_kwargs
        self.metrics: list[Any] = []
        if test_fn is None and not all(map(judges, datasets)):
            accepted = list(inspect.signature(EvalHook).parameters)[1:-1]
            self.metrics = metrics_of(self.dataset, dict(eval_kwargs), accepted)
        self.key_indicator = save_best
        self.rule = rule
        if save_best is not None and (save_best != "auto" or rule is not None):
            known = "loss" if save_best == "auto" else save_best
            self.rule = infer_rule(known, rule, self.greater_keys, self.less_keys)
        if generate is not None:  # loaded by who asks for it alone
            from devrun.hooks.evaluation import generation

            self.metrics.append(generation.GenerationScores(generate))
        self.best = BestCheckpoints(None if out_dir is None else os.fspath(out_dir))
        self.initial_flag = start is not None
        self.evaluated_at: tuple[int, int] | None = None
        """(epoch, iter) of the runner at the last evaluation."""

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
        if self.tries_first and runner.iter == 0:
            self.try_out(runner, self.tries_first)

    def before_train_epoch(self, runner: Run) -> None:
        if self.by_epoch and self.initial_flag:
            self._evaluate_before_training(runner, runner.epoch)

    def before_train_iter(self, runner: Run) -> None:
        if not self.by_epoch and self.initial_flag:
            self._evaluate_before_training(runner, runner.iter)

    def after_train_epoch(self, runner: Run) -> None:
        if self.by_epoch and self._should_evaluate(runner):
            self._evaluate(runner)

    def after_train_iter(self, runner: Run) -> None:
        if self.by_epoch or not self._should_evaluate(runner):
            return
        # Training values first, in a record of their own.
        for hook in runner.hooks:
            if isinstance(hook, LoggerHook):
                hook.after_train_iter(runner)
        runner.log_buffer.clear()
        self._evaluate(runner)

    def evaluate_now(self, runner: Run) -> dict[str, Any]:
        """The named results of one evaluation outside of a run; nothing is logged."""
        self._check_shares(runner)
        self._evaluate(runner, save=False)
        named = dict(runner.log_buffer.output)
        runner.log_buffer.clear_output()
        named.pop("eval_iter_num", None)
        return named

    def try_out(self, runner: Run, batches: int) -> None:
        """Evaluate some batches, so that what is wrong with it shows now.

        Nothing is kept or logged, and the random streams are as before. What would
        have to see all samples is left out: `test_fn`, a data set's `evaluate`, a
        subclass's own evaluation, hooks that take part in one, and ranks that step
        together.
        """
        own = type(self)._do_evaluate is not EvalHook._do_evaluate
        if own or self.test_fn is not None or runner.eval_contexts:
            return
        began = perf_counter()
        with runner.trying_out():
            for name in self._each_set():
                loader = runner.prepare_eval_loader(self.dataloader)
                if loader.in_step is not None:
                    continue
                try:
                    self._try_set(runner, batches)
                except Exception:
                    told = "failed in the first %d batches of the evaluation%s, which "
                    told += "are tried before training (--no-sanity does not)"
                    runner.logger.error(told, batches, f" {name}".rstrip())
                    raise
                finally:
                    loader.close()
                    loader.set_epoch(0)  # workers draw as if it had not been read
        exclude_time(runner, perf_counter() - began, "evaluation")

    def _try_set(self, runner: Run, batches: int) -> None:
        steps: Any = islice(Steps(runner, self.dataloader, self._mode), batches)
        if self._mode == "predict":
            collect_predictions(steps, None)
            return
        more = [m for m in runner.eval_metrics if m not in self.metrics]
        found = evaluate_means(steps, [*self.metrics, *more])
        made = [name for metric in set_metrics(self.metrics) for name in metric.names]
        self._check_indicator([self._named(name) for name in (*found, *made)])

    def evaluate(self, runner: Run, results: Any) -> Any:
        """Results of each sample -> score to compare by, all values in the log buffer.

        `results` may also be the named values themselves. On several ranks, those of
        rank 0 count.
        """
        named = on_main(lambda: self.named_results(runner, results))
        return self.publish(runner, named)

    def named_results(self, runner: Run, results: Any) -> dict[str, Any]:
        """What the data set makes of `results`, on this rank alone.

        Nothing where the run looks at a part of the data only, as a dry run does: an
        `evaluate` is written for the results of all samples.
        """
        part = runner.prepare_eval_loader(self.dataloader).shortened
        if part and judges(self.dataset):
            runner.logger.warning(
                "evaluate of %s takes the results of all samples, of which this run "
                "looks at some: it is not called",
                type(self.dataset).__name__,
            )
            return {}
        return dict(judged(self.dataset, results, runner.logger, self.eval_kwargs))

    def state_dict(self) -> dict[str, Any]:
        """Scores and names of the best checkpoints, and the metric they go by."""
        if self.save_best is None:
            return {}
        return {
            "best": self.best.entry,
            "key_indicator": self.key_indicator,
            "rule": self.rule,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the best of the run that saved, if it went by the same metric."""
        if self.save_best not in ("auto", state["key_indicator"]):
            return
        if state["best"] is not None:
            score, name = state["best"]
            # the name alone: a checkpoint may be a stranger's, and old ones are deleted
            self.best.entry = float(score), os.path.basename(str(name))
        self.key_indicator, self.rule = state["key_indicator"], state["rule"]

    def _evaluate_before_training(self, runner: Run, position: int) -> None:
        """Evaluation before training; logged at once: an epoch clears the buffer."""
        due = self.initial_flag and self.start is not None and position >= self.start
        self.initial_flag = False
        if not due:
            return
        self._evaluate(runner, save=False)
        for hook in runner.hooks:
            if isinstance(hook, LoggerHook) and runner.log_buffer.ready:
                hook.log_now(runner, step=runner.iter, mode="val", epoch=runner.epoch)
        runner.log_buffer.clear_output()

    def _check_shares(self, runner: Run) -> None:
        if runner.world_size > 1:
            for loader in self.loaders.values():
                check_shares(runner.prepare_eval_loader(loader))

    def _should_evaluate(self, runner: Run) -> bool:
        done = (runner.epoch if self.by_epoch else runner.iter) + 1
        last = runner.max_epochs if self.by_epoch else runner.max_iters
        if self.at_end and done == last:
            return True
        if self.start is None:
            return done % self.interval == 0
        return done >= self.start and (done - self.start) % self.interval == 0

    def _evaluate(self, runner: Run, *, save: bool = True) -> None:
        began = perf_counter()
        self.metrics += [m for m in runner.eval_metrics if m not in self.metrics]
        if self.broadcast_bn_buffer:  # a rank's own ones saw only its samples
            share_statistics(runner.model)
        if type(self)._do_evaluate is EvalHook._do_evaluate:
            score = self._score(runner)
        else:
            scores = [_evaluate_own(self, runner) for _ in self._each_set()]
            score = _first_score(scores)
        # None also when there were no results; a warning said so
        if save and self.save_best is not None and score is not None:
            self._save_ckpt(runner, score)
        exclude_time(runner, perf_counter() - began, "evaluation")

    def _do_evaluate(self, runner: Run) -> Any:
        """The score; MMCV's name, under which subclasses have their own."""
        return self._score(runner)

    def _score(self, runner: Run) -> Any:
        found, batches = {}, 0
        with runner.evaluating():
            for name in self._each_set():
                found[name], count = self._results(runner)
                batches += count
        runner.log_buffer.output["eval_iter_num"] = batches
        scores = [self.evaluate(runner, found[name]) for name in self._each_set()]
        return _first_score(scores)

    def _results(self, runner: Run) -> tuple[Any, int]:
        """Of one pass over the set in turn, and its number of batches."""
        if self.test_fn is not None:
            loader = runner.prepare_eval_loader(self.dataloader)
            results = self.test_fn(runner.model, loader, **self._test_options())
            return results, length_of(self.dataloader) or 0
        steps = Steps(runner, self.dataloader, self._mode)
        if self._mode == "predict":
            results = collect_predictions(steps, length_of(self.dataset))
        else:
            results = evaluate_means(steps, self.metrics)
            for metric in set_metrics(self.metrics):
                results.update(metric.of_set(runner, self.dataloader))
        return results, steps.batches

    def _each_set(self) -> Iterator[str]:
        for name in self.loaders:
            self._set = name
            yield name

    @property
    def dataloader(self) -> Any:
        return self.loaders[self._set]

    @property
    def dataset(self) -> Any:
        return self.dataloader.dataset

    def _test_options(self) -> dict[str, Any]:
        """Further arguments of `test_fn`."""
        return {}

    @property
    def _mode(self) -> str:
        """A data set that judges for itself gets predictions, without a loss."""
        return "predict" if judges(self.dataset) else "val"

    def publish(self, runner: Run, named: Mapping[str, Any]) -> Any:
        """Put the named results into the log; the one that `save_best` goes by."""
        self.evaluated_at = (runner.epoch, runner.iter)
        output = runner.log_buffer.output
        named = {self._named(name): value for name, value in named.items()}
        output.update((name, plain_number(value)) for name, value in named.items())
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
        self._check_indicator(named)
        return named.get(str(self.key_indicator))

    def _check_indicator(self, named: Collection[str]) -> None:
        """Refuse a `save_best` that is not among the results of its set."""
        known = self.save_best in (None, "auto") or str(self.key_indicator) in named
        of_this_set = str(self.key_indicator).startswith(self._named(""))
        if not known and of_this_set:
            raise UnknownNameError(
                f"save_best={self.key_indicator!r} is not a result of the evaluation; "
                f"there are: {', '.join(sorted(named))}; name one of these, or 'auto'"
            )

    def _named(self, result: str) -> str:
        return f"{self._set}/{result}" if self._set else result

    def _save_ckpt(self, runner: Run, key_score: Any) -> None:
        metric, rule = str(self.key_indicator), str(self.rule)
        done = (runner.epoch if self.by_epoch else runner.iter) + 1
        when = f"{'epoch' if self.by_epoch else 'iter'}_{done}"
        score = as_score(metric, key_score)
        path = self.best.offer(runner, metric, rule, score, when)
        if path is not None:
            runner.logger.info(
                "Best %s is %.4f at %s, saved as %s", metric, score, when, path
            )


@HOOKS.register_module()
class DistEvalHook(EvalHook):
    """`EvalHook`, which itself works on several ranks, with MMCV's extra arguments.

    Args:
        broadcast_bn_buffer: all ranks evaluate with the BatchNorm statistics of rank 0.
        tmpdir, gpu_collect: passed on to `test_fn`; not needed otherwise.
    """

    def __init__(
        self,
        dataloader: Any,
        *args: Any,
        broadcast_bn_buffer: bool = True,
        tmpdir: str | None = None,
        gpu_collect: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(dataloader, *args, **kwargs)
        self.broadcast_bn_buffer = broadcast_bn_buffer
        self.tmpdir, self.gpu_collect = tmpdir, gpu_collect

    def _test_options(self) -> dict[str, Any]:
        return {"tmpdir": self.tmpdir, "gpu_collect": self.gpu_collect}


def _first_score(scores: list[Any]) -> Any:
    """The score of the set that `save_best` goes by, if any is there."""
    return next((score for score in scores if score is not None), None)


def _evaluate_own(hook: EvalHook, runner: Run) -> Any:
    """Call the `_do_evaluate` of a subclass; on every rank the score that it saved by.

    As in MMCV's libraries, it calls `self.test_fn(model, loader)`, which is always
    there in MMCV, then `self.evaluate(runner, results)` and `self._save_ckpt(runner,
    score)`: on several ranks the last two on rank 0 alone, where devrun's need all.

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
    before = {name: vars(hook)[name] for name in names.keys() & vars(hook).keys()}
    given = {name: getattr(type(hook), name, None) for name in names}
    ours = {n for n, m in given.items() if not m or m.__module__.startswith("devrun.")}
    vars(hook).update({name: names[name] for name in ours})
    try:
        yield
    finally:
        for name in ours:
            vars(hook).pop(name, None)
        vars(hook).update(before)
