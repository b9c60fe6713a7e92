"""The hooks of an MMEngine-style configuration in devrun's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devrun.config.tree import ConfigDict, origin_of, place
from devrun.interop.mmengine.section import (
    Section,
    Translation,
    listed,
    new,
    refuse,
    refuse_value,
)

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
    if given is not None and not isinstance(given, (list, tuple)):
        refuse_value(work.tree, "custom_hooks", "it takes a list")
    for hook in work.tree.pop("custom_hooks", None) or ():
        if not isinstance(hook, ConfigDict) or "type" not in hook:
            place(work.tree, "custom_hooks", given, origin)
            refuse_value(work.tree, "custom_hooks", "each is a dict with a type")
        _hook(work, Section(hook, hook._meta_.origin or origin))


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
    hook.move("interval", log)
    shown = listed([new(hook.origin)], hook.origin, ("log_config", "hooks"))
    place(shown[0], "type", "TextLoggerHook", hook.origin)
    hook.move("ignore_last", shown[0])
    place(log, "hooks", shown, hook.origin)
    hook.drop("priority", "interval_exp_name", "log_metric_by_epoch", "keep_local")
    hook.drop("out_dir", "out_suffix")
    _not_remote(hook)
    hook.done()


def _checkpoint(work: Translation, hook: Section) -> None:
    saved = work.within("checkpoint_config", hook.origin)
    if not work.by_epoch and "by_epoch" not in hook.node:
        place(saved, "by_epoch", False, hook.origin)
    hook.move_all(("interval", "by_epoch", "save_optimizer", "out_dir"), saved)
    hook.move_all(("max_keep_ckpts", "save_last"), saved)
    hook.without("save_begin", "checkpoints are saved from the start")
    _not_remote(hook)
    hook.drop("save_param_scheduler", "published_keys", "priority", "filename_tmpl")
    best = hook.node.get("save_best")
    if isinstance(best, (list, tuple)):
        if len(best) != 1:
            refuse_value(hook.node, "save_best", "one result decides; name one")
        place(hook.node, "save_best", best[0], origin_of(hook.node, "save_best"))
    if hook.node.get("save_best"):
        evaluation = work.within("evaluation", hook.origin)
        hook.move_all(("save_best", "greater_keys", "less_keys"), evaluation)
        rule = hook.node.get("rule")
        if isinstance(rule, (list, tuple)) and len(rule) == 1:
            place(hook.node, "rule", rule[0], origin_of(hook.node, "rule"))
        hook.move("rule", evaluation)
    hook.drop("save_best", "rule", "greater_keys", "less_keys")
    hook.done()


def _ema(work: Translation, hook: Section) -> None:
    """MMEngine's average is a copy until `begin_iter`, and has no warm-up."""
    kind = hook.node.get("ema_type", "ExponentialMovingAverage")
    if kind != "ExponentialMovingAverage":
        refuse_value(hook.node, "ema_type", "ExponentialMovingAverage is known")
    hook.without("begin_epoch", "give begin_iter")
    ours = _ours(hook, type="devrun.EMAHook", warm_up=1, begin_iter=0)
    hook.move_all(("momentum", "interval", "begin_iter", "priority"), ours)
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


def _early(work: Translation, hook: Section) -> None:
    ours = _ours(hook, type="devrun.EarlyStoppingHook", min_delta=0.1)
    hook.move_all(("monitor", "rule", "min_delta", "patience"), ours)
    hook.move("stopping_threshold", ours, "threshold")
    hook.drop("strict", "check_finite", "priority")
    hook.done()
    _add(work, ours, hook)


def _ours(hook: Section, **usual: Any) -> ConfigDict:
    """The section of the hook that stands for theirs, with what is usual there."""
    made = new(hook.origin, ("custom_hooks",))
    for key, value in usual.items():
        place(made, key, value, hook.origin)
    return made


def _not_remote(hook: Section) -> None:
    for key in ("file_client_args", "backend_args"):
        hook.without(key, "files are local here")


_TRANSLATED: dict[str, Callable[[Translation, Section], None]] = {
    "LoggerHook": _logger,
    "CheckpointHook": _checkpoint,
    "EMAHook": _ema,
    "EarlyStoppingHook": _early,
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
            one.move("init_kwargs", ours)
            log["hooks"].append(ours)
