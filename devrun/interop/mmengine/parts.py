"""Loaders, loops, optimizer, schedules, evaluation and hooks of MMEngine's configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devrun.config.tree import ConfigDict, ConfigList, origin_of, place
from devrun.interop.mmengine.section import (
    Section,
    Translation,
    listed,
    new,
    refuse,
    refuse_value,
)

_LOOPS = {"EpochBasedTrainLoop": True, "IterBasedTrainLoop": False}
_SAME = (
    *("drop_last", "persistent_workers", "pin_memory", "prefetch_factor", "timeout"),
    "multiprocessing_context",
)
"""Options of a loader with one name in both."""
_SAMPLERS = ("DefaultSampler", "InfiniteSampler")
_PRECISIONS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_TORCH_OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta")


def train_cfg(work: Translation) -> None:
    """`train_cfg`: how long, and when it is evaluated."""
    section = work.section("train_cfg")
    if section is None:
        return
    if _bare(section.node.get("type")) not in (None, *_LOOPS):
        refuse_value(section.node, "type", f"known are {', '.join(_LOOPS)}")
    kind = section.pop("type")
    by_epoch = section.pop("by_epoch", "max_epochs" in section.node)
    work.by_epoch = by_epoch if kind is None else _LOOPS[_bare(kind)]
    word = "max_epochs" if work.by_epoch else "max_iters"
    runner = new(section.origin, ("runner",))
    name = "EpochBasedRunner" if work.by_epoch else "IterBasedRunner"
    place(runner, "type", name, section.origin)
    if word not in section.node:
        refuse(section.node, word, "is needed: how long the training lasts")
    section.move(runner, word)
    work.put("runner", runner, section.origin)
    section.without(dynamic_intervals="give one val_interval")
    _when(work, section, runner[word])
    section.done()


def _when(work: Translation, section: Section, last: Any) -> None:
    """At multiples of the interval from `val_begin` on, and at the end."""
    if work.tree.get("val_dataloader") is None:
        section.drop("val_interval", "val_begin")
        return
    evaluation = work.within("evaluation", section.origin)
    if not work.by_epoch and "val_interval" not in section.node:
        place(evaluation, "interval", 1000, section.origin)
    section.move(evaluation, val_interval="interval")
    begin = origin_of(section.node, "val_begin"), section.pop("val_begin", 1)
    interval = evaluation.get("interval", 1)
    if not (isinstance(interval, int) and isinstance(begin[1], int) and interval > 0):
        return  # the check of the configuration says so
    if begin[1] > interval:
        first = -(-begin[1] // interval) * interval
        place(evaluation, "start", first, begin[0])
    if isinstance(last, int) and last % interval:
        place(evaluation, "at_end", True, section.origin)


def val_cfg(work: Translation) -> None:
    """`val_cfg` and `test_cfg` name a loop; only MMEngine's own are known."""
    for key, loop in (("val_cfg", "ValLoop"), ("test_cfg", "TestLoop")):
        section = work.section(key)
        if section is None:
            continue
        if _bare(section.node.get("type", loop)) != loop:
            refuse_value(section.node, "type", f"an evaluation is a {loop} here")
        section.without(fp16="optimizer_config.precision holds for both")
        section.pop("type")
        section.done()


def loaders(work: Translation) -> None:
    """`*_dataloader`: a data set and how it is read."""
    for mode in ("train", "val", "test"):
        section = work.section(f"{mode}_dataloader")
        if section is None:
            continue
        data = work.within("data", section.origin)
        if "dataset" not in section.node:
            refuse(section.node, "dataset", "is needed: what is read")
        section.without(num_batch_per_epoch="an epoch is all data")
        work.scoped(section.node["dataset"])
        section.move(data, dataset=mode)
        options = new(section.origin, ("data", f"{mode}_dataloader"))
        section.move(
            options, batch_size="samples_per_gpu", num_workers="workers_per_gpu"
        )
        section.move(options, *_SAME)
        _sampler(work, section, options, mode)
        _collate(work, section, options)
        section.done()
        place(data, f"{mode}_dataloader", options, section.origin)


def _sampler(
    work: Translation, section: Section, options: ConfigDict, mode: str
) -> None:
    section.without(batch_sampler="give data.train_dataloader buckets of devrun's")
    origin, sampler = origin_of(section.node, "sampler"), section.pop("sampler")
    if not isinstance(sampler, ConfigDict):
        return
    kind = _bare(sampler.get("type"))
    if kind in _SAMPLERS or (kind == "SequentialSampler" and mode != "train"):
        # order and shares of the ranks are devrun's: a resume finds its place in them
        shuffle = sampler.get("shuffle", kind in _SAMPLERS)
        place(options, "shuffle", shuffle, origin_of(sampler, "shuffle") or origin)
        return
    place(options, "sampler", work.scoped(sampler), origin)


def _collate(work: Translation, section: Section, options: ConfigDict) -> None:
    """MMEngine's default leaves samples unstacked: its preprocessor stacks them."""
    origin = origin_of(section.node, "collate_fn") or section.origin
    collate = section.pop("collate_fn")
    if collate is None:
        collate = new(origin, ("data", "collate_fn"))
        place(collate, "type", "mmengine.pseudo_collate", origin)
    place(options, "collate_fn", work.scoped(collate), origin)


def optim_wrapper(work: Translation) -> None:
    """`optim_wrapper`: the optimizer, its groups, and how an update is done."""
    section = work.section("optim_wrapper")
    if section is None:
        return
    if not isinstance(section.node.get("optimizer"), ConfigDict):
        reason = "needs the key optimizer; several optimizers are not translated"
        refuse(section.node, None, reason)
    update = work.within("optimizer_config", section.origin)
    _precision(section, update)
    clip = section.section("clip_grad")
    if clip is not None:
        clip.pop("type")  # by max_norm or by clip_value: the arguments say it
        place(update, "grad_clip", clip.node, clip.origin)
    section.move(update, accumulative_counts="cumulative_iters")
    if update.get("cumulative_iters", 1) != 1 and not work.by_epoch:
        refuse(
            update,
            "cumulative_iters",
            "accumulative_counts with max_iters is not translated: MMEngine counts "
            "batches and devrun updates; write the sections in devrun's words",
        )
    _optimizer(work, section)
    section.done()


def _precision(section: Section, update: ConfigDict) -> None:
    origin = origin_of(section.node, "type") or section.origin
    kind = _bare(section.node.get("type", "OptimWrapper"))
    if kind not in ("OptimWrapper", "AmpOptimWrapper"):
        refuse_value(section.node, "type", "OptimWrapper and AmpOptimWrapper are known")
    section.pop("type")
    if kind == "OptimWrapper":
        return
    origin = origin_of(section.node, "dtype") or origin
    if (section.node.get("dtype") or "float16") not in _PRECISIONS:
        refuse_value(section.node, "dtype", f"one of {', '.join(_PRECISIONS)}")
    given = section.pop("dtype") or "float16"
    place(update, "precision", _PRECISIONS[given], origin)
    section.pop("use_fsdp")
    if given == "float16":
        section.move(update, "loss_scale")
    section.pop("loss_scale")


def _optimizer(work: Translation, section: Section) -> None:
    inner = Section(section.node["optimizer"], origin_of(section.node, "optimizer"))
    section.pop("optimizer")
    kind = inner.node.get("type")
    if kind not in _TORCH_OPTIMIZERS:
        work.scoped(inner.node)
    section.move(inner.node, "constructor", "paramwise_cfg")
    if "constructor" in inner.node or inner.node.get("paramwise_cfg"):
        origin = origin_of(inner.node, "constructor") or inner.origin
        name = inner.node.get("constructor", "DefaultOptimWrapperConstructor")
        if isinstance(name, str) and "." not in name:
            scope = work.scope if "constructor" in inner.node else "mmengine"
            place(inner.node, "constructor", f"{scope}.{name}", origin)
    work.put("optimizer", inner.node, inner.origin)


def evaluators(work: Translation) -> None:
    """`val_evaluator`, or `test_evaluator` where `devrun test` asks for that split."""
    origin = origin_of(work.tree, f"{work.split}_evaluator")
    chosen = work.tree.get(f"{work.split}_evaluator")
    for key in ("val_evaluator", "test_evaluator"):
        work.tree.pop(key, None)
    if chosen is None or work.out.get("data", {}).get(work.split) is None:
        return
    if isinstance(chosen, ConfigDict) and "metrics" in chosen:
        evaluator = Section(chosen, origin)
        if _bare(evaluator.pop("type", "Evaluator")) != "Evaluator":
            refuse(chosen, None, "an evaluator of another type is not translated")
        origin = origin_of(chosen, "metrics") or origin
        chosen = evaluator.pop("metrics")
        evaluator.done()
    metrics = chosen if isinstance(chosen, (list, tuple)) else [chosen]
    seen: list[Any] = []
    for one in metrics:
        kind = one.get("type") if isinstance(one, ConfigDict) else None
        if kind in seen:  # devrun tells two of one class apart by their names
            place(one, "name", f"{kind}_{seen.count(kind) + 1}", one._meta_.origin)
        seen.append(kind)
    made = listed((work.scoped(one) for one in metrics), origin, ("evaluation",))
    place(work.within("evaluation", origin), "metric", made, origin)


def schedulers(work: Translation) -> None:
    """`param_scheduler`: one hook, which steps MMEngine's own classes."""
    origin = origin_of(work.tree, "param_scheduler")
    given = work.tree.pop("param_scheduler", None)
    if not given or not work.schedules:
        return
    parts = list(given) if isinstance(given, (list, tuple)) else [given]
    for part in parts:
        if not isinstance(part, ConfigDict) or "type" not in part:
            place(work.tree, "param_scheduler", given, origin)
            refuse_value(work.tree, "param_scheduler", "it takes dicts with a type")
        if "ReduceOnPlateau" in str(part["type"]):
            refuse_value(part, "type", "use lr_config: {policy: ReduceLROnPlateau}")
        work.scoped(part)
    hook = new(origin, ("custom_hooks", 0))
    place(hook, "type", "mmengine.ParamSchedulerHook", origin)
    place(hook, "schedulers", listed(parts, origin, ("param_scheduler",)), origin)
    counts = work.out.get("optimizer_config", {}).get("cumulative_iters", 1)
    if counts != 1:
        place(hook, "batches_per_update", counts, origin)
    hooks = work.out.get("custom_hooks", ConfigList())
    work.put("custom_hooks", listed([hook, *hooks], origin, ("custom_hooks",)), origin)


def _bare(kind: Any) -> Any:
    """The name without its scope."""
    return kind.rpartition(".")[2] if isinstance(kind, str) else kind


_NOTHING = (
    "DistSamplerSeedHook",
    "IterTimerHook",
    "ParamSchedulerHook",
    "RuntimeInfoHook",
    "SegVisualizationHook",
    "DetVisualizationHook",
    "VisualizationHook",
)
"""What devrun does anyway, or draws nothing of."""
_VIS = {
    "LocalVisBackend": None,
    "TensorboardVisBackend": "TensorboardLoggerHook",
    "WandbVisBackend": "WandbLoggerHook",
    "MLflowVisBackend": "MlflowLoggerHook",
}
_REMOTE = dict.fromkeys(("file_client_args", "backend_args"), "files are local here")
_OURS = ("EmptyCacheHook", "SyncBuffersHook")


def default_hooks(work: Translation) -> None:
    """`default_hooks`, and those that MMEngine adds where it is silent."""
    section = work.section("default_hooks")
    node = ConfigDict() if section is None else section.node
    origin = work.out._meta_.origin if section is None else section.origin
    work.schedules = node.get("param_scheduler", True) is not None
    for key, kind in (("logger", "LoggerHook"), ("checkpoint", "CheckpointHook")):
        if key not in node:
            place(node, key, new(origin, ("default_hooks", key)), origin)
        if isinstance(node[key], ConfigDict):
            node[key].setdefault("type", kind)
    for key in list(node):
        place_of = origin_of(node, key) or origin
        hook = node.pop(key)
        if hook is None or (key == "param_scheduler" and isinstance(hook, ConfigDict)):
            continue
        if not isinstance(hook, ConfigDict) or "type" not in hook:
            place(node, key, hook, place_of)
            refuse_value(node, key, "a hook is a dict with a type, or None")
        _hook(work, Section(hook, place_of))


def custom_hooks(work: Translation) -> None:
    """`custom_hooks`: devrun's where it has one, else the package's own."""
    origin = origin_of(work.tree, "custom_hooks")
    given = work.tree.get("custom_hooks")
    hooks = given if isinstance(given, (list, tuple)) else [given]
    for hook in hooks if given is not None else ():
        if not isinstance(hook, ConfigDict) or "type" not in hook:
            refuse_value(work.tree, "custom_hooks", "it takes dicts with a type")
        _hook(work, Section(hook, hook._meta_.origin or origin))
    work.tree.pop("custom_hooks", None)


def _hook(work: Translation, hook: Section) -> None:
    kind = hook.node["type"]
    name = kind.rpartition(".")[2] if isinstance(kind, str) else ""
    if name in _NOTHING:
        return
    if name in _TRANSLATED:
        hook.pop("type")
        _TRANSLATED[name](work, hook)
        return
    if name in _OURS:
        place(hook.node, "type", f"devrun.{name}", hook.origin)
    _add(work, work.scoped(hook.node), hook)


def _add(work: Translation, node: Any, hook: Section) -> None:
    hooks = [*work.out.get("custom_hooks", ()), node]
    work.put("custom_hooks", listed(hooks, hook.origin, ("custom_hooks",)), hook.origin)


def _logger(work: Translation, hook: Section) -> None:
    log = work.within("log_config", hook.origin)
    hook.move(log, "interval")
    shown = listed([new(hook.origin)], hook.origin, ("log_config", "hooks"))
    place(shown[0], "type", "TextLoggerHook", hook.origin)
    hook.move(shown[0], "ignore_last")
    place(log, "hooks", shown, hook.origin)
    hook.drop("priority", "interval_exp_name", "log_metric_by_epoch", "keep_local")
    hook.drop("out_dir", "out_suffix")
    hook.without(**_REMOTE)
    hook.done()


def _checkpoint(work: Translation, hook: Section) -> None:
    saved = work.within("checkpoint_config", hook.origin)
    if not work.by_epoch and "by_epoch" not in hook.node:
        place(saved, "by_epoch", False, hook.origin)
    hook.move(saved, "interval", "by_epoch", "save_optimizer", "out_dir")
    hook.move(saved, "max_keep_ckpts", "save_last")
    hook.without(save_begin="checkpoints are saved from the start", **_REMOTE)
    hook.drop("save_param_scheduler", "published_keys", "priority", "filename_tmpl")
    best = hook.node.get("save_best")
    if isinstance(best, (list, tuple)):
        if len(best) != 1:
            refuse_value(hook.node, "save_best", "one result decides; name one")
        place(hook.node, "save_best", best[0], origin_of(hook.node, "save_best"))
    if hook.node.get("save_best"):
        evaluation = work.within("evaluation", hook.origin)
        hook.move(evaluation, "save_best", "rule")
    hook.drop("save_best", "rule")
    hook.done()


def _ema(work: Translation, hook: Section) -> None:
    """MMEngine's average is a copy until `begin_iter`, and has no warm-up."""
    kind = hook.node.get("ema_type", "ExponentialMovingAverage")
    if kind != "ExponentialMovingAverage":
        refuse_value(hook.node, "ema_type", "ExponentialMovingAverage is known")
    hook.without(begin_epoch="give begin_iter")
    ours = new(hook.origin, ("custom_hooks",))
    for key, usual in {"type": "devrun.EMAHook", "warm_up": 1, "begin_iter": 0}.items():
        place(ours, key, usual, hook.origin)
    hook.move(ours, "momentum", "interval", "begin_iter", "priority")
    # theirs is the momentum of one averaging, and one for each batch
    counts = work.out.get("optimizer_config", {}).get("cumulative_iters", 1)
    times = counts / ours.get("interval", 1)
    if times != 1 and "momentum" in ours:
        one = 1 - (1 - ours["momentum"]) ** times
        place(ours, "momentum", one, origin_of(ours, "momentum"))
    place(ours, "begin_iter", ours["begin_iter"] // counts, hook.origin)
    if hook.pop("update_buffers"):
        place(ours, "buffers", "average", hook.origin)
    if hook.pop("evaluate_on_origin"):
        work.unused.append(f"EMAHook.evaluate_on_origin ({hook.origin})")
    hook.drop("strict_load", "ema_type", "evaluate_on_ema")
    hook.done()
    _add(work, ours, hook)


_TRANSLATED: dict[str, Callable[[Translation, Section], None]] = {
    "LoggerHook": _logger,
    "CheckpointHook": _checkpoint,
    "EMAHook": _ema,
}


def visualizer(work: Translation) -> None:
    """`visualizer` and `vis_backends`: where numbers go besides the log."""
    section = work.section("visualizer")
    backends = work.tree.pop("vis_backends", None)
    if section is not None:
        backends = section.pop("vis_backends") or backends
    log = work.out.get("log_config")
    for backend in backends or ():
        kind = backend.get("type") if isinstance(backend, ConfigDict) else None
        if str(kind).rpartition(".")[2] not in _VIS:
            known = ", ".join(_VIS)
            node = backend if isinstance(backend, ConfigDict) else work.tree
            refuse(node, "type", f"of a vis backend: devrun translates {known}")
        name, origin = _VIS[str(kind).rpartition(".")[2]], origin_of(backend, "type")
        if name is not None and log is not None:
            ours = new(origin, ("log_config", "hooks"))
            place(ours, "type", name, origin)
            one = Section(backend, origin)
            one.move(ours, "init_kwargs")
            log["hooks"].append(ours)
