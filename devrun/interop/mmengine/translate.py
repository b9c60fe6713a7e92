"""MMEngine-style configurations, translated into devrun's sections.

    translated(Config.fromfile("resnet18_8xb16_cifar10.py"))

What a section says is said in devrun's words, and every value keeps the file and line
it was written on. A `type` becomes `scope.Name`, the scope being `default_scope`; what
stands inside of it is left to that package. A key that cannot be said is refused by
name; one that changes nothing here is named once, in a warning.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

from devrun.config.config import Config
from devrun.config.engine import ENGINE_KEYS, is_engine_style
from devrun.config.origin import hint_for
from devrun.config.schema import KEYS, USUAL_HELPERS
from devrun.config.tree import ConfigDict, origin_of, place
from devrun.interop.mmengine import parts
from devrun.interop.mmengine.section import Translation, refuse
from devrun.interop.packages import SCOPES

_SAME = (
    "auto_scale_lr",
    "custom_imports",
    "find_unused_parameters",
    "launcher",
    "load_from",
    "log_level",
    "sync_bn",
    "work_dir",
)
"""Keys with one name and one meaning in both."""
_WITHOUT_EFFECT = ("experiment_name", "log_processor", "tta_model", "tta_pipeline")
_OVERRIDDEN = (
    "data",
    "optimizer",
    "lr_config",
    "momentum_config",
    "runner",
    "workflow",
    "fp16",
    "custom_hooks",
    "resume_from",
)
"""devrun's sections that MMEngine's say already; MMEngine does not read them."""


def translated(config: Config, split: str = "val") -> Config:
    """`config` in devrun's words; one that is in them already is returned as it is.

    Args:
        split: `val` or `test`: whose evaluator `evaluation` has.

    Raises:
        ConfigError: a value that devrun has no word for, with its file, line and key.
    """
    tree = config._cfg_dict
    if not is_engine_style(tree):
        return config
    work = Translation(copy.deepcopy(tree), split=split)
    for step in _STEPS:
        step(work)
    _rest(work, config._helpers)
    made = config._with(work.out)
    made._set("_helpers", frozenset())
    if work.unused:
        logging.getLogger("devrun").warning(
            "not used by devrun: %s", ", ".join(work.unused)
        )
    return made


def _model(work: Translation) -> None:
    work.scope = work.tree.get("default_scope") or "mmengine"
    if work.scope not in SCOPES:
        reason = f"no scope {work.scope!r}; {hint_for(work.scope, SCOPES)}"
        refuse(work.tree, "default_scope", reason)
    work.tree.pop("default_scope", None)
    model = work.section("model")
    if model is None:
        return
    if "data_preprocessor" in work.tree and "data_preprocessor" not in model.node:
        model.node["data_preprocessor"] = work.tree["data_preprocessor"]
    work.tree.pop("data_preprocessor", None)
    work.put("model", work.scoped(model.node), model.origin)


def _process(work: Translation) -> None:
    """`env_cfg`, `randomness`, `resume` and the kinds of run there are not."""
    if env := work.section("env_cfg"):
        env.move(work.out, "cudnn_benchmark", dist_cfg="dist_params")
        env.drop("resource_limit", "mp_cfg")
        env.done()
    if randomness := work.section("randomness"):
        randomness.move(work.out, "deterministic", diff_rank_seed="diff_seed")
        if randomness.node.get("seed") is not None:
            randomness.move(work.out, "seed")
        randomness.pop("seed")
        randomness.done()
    origin = origin_of(work.tree, "resume")
    if work.tree.pop("resume", None):
        start = work.tree.pop("load_from", None)
        work.put("resume_from", start or "auto", origin)
    scale = work.tree.get("auto_scale_lr")
    if isinstance(scale, ConfigDict) and not scale.get("enable"):
        del work.tree["auto_scale_lr"]
    for key in ("strategy", "runner_type", "compile"):
        if work.tree.get(key) not in (None, False, "Runner"):
            refuse(work.tree, key, "is not translated: remove it, or set it to None")
        work.tree.pop(key, None)
    wrapper = work.section("model_wrapper_cfg")
    if wrapper is not None:
        if wrapper.pop("type", "") not in ("", "MMDistributedDataParallel"):
            refuse(wrapper.node, None, "only MMDistributedDataParallel is translated")
        wrapper.move(work.out, "find_unused_parameters")
        wrapper.done()


def _rest(work: Translation, helpers: frozenset[str]) -> None:
    """What is the same in both, devrun's own keys, variables, and the rest."""
    for key in list(work.tree):
        origin = origin_of(work.tree, key)
        value = work.tree[key]
        if key == "sync_bn":  # there the name of a class of batch norms
            value = bool(value)
        if key in _SAME or (key in KEYS and key not in (*_OVERRIDDEN, *ENGINE_KEYS)):
            if isinstance(value, dict) and isinstance(work.out.get(key), dict):
                value = ConfigDict({**work.out[key], **value})
            work.put(key, value, origin)
        elif key in _WITHOUT_EFFECT:
            if value:
                work.unused.append(f"{key} ({origin})")
        elif key in _OVERRIDDEN:
            work.unused.append(f"{key} ({origin}; not a section of MMEngine)")
        elif str(key).startswith(("x-", "_")):
            work.put(key, value, origin)
        elif key not in helpers and not USUAL_HELPERS.fullmatch(str(key)):
            hint = hint_for(key, ENGINE_KEYS)
            if hint.startswith("did you mean"):
                refuse(work.tree, key, f"unknown key; {hint}")


def _scaled(work: Translation) -> None:
    """`auto_scale_lr` counts samples of a batch; devrun's, of an update."""
    scale = work.tree.get("auto_scale_lr")
    counts = work.out.get("optimizer_config", {}).get("cumulative_iters", 1)
    if isinstance(scale, ConfigDict) and isinstance(counts, int) and counts != 1:
        base = scale.get("base_batch_size")
        if isinstance(base, int):
            origin = origin_of(scale, "base_batch_size")
            place(scale, "base_batch_size", base * counts, origin)


_STEPS: tuple[Callable[[Translation], None], ...] = (
    _model,
    _process,
    parts.train_cfg,
    parts.val_cfg,
    parts.loaders,
    parts.optim_wrapper,
    _scaled,
    parts.evaluators,
    parts.default_hooks,
    parts.custom_hooks,
    parts.schedulers,
    parts.visualizer,
)
