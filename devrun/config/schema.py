"""Every key a configuration may have, and what each takes.

`KEYS` is the table: a word is a kind of value (`"int"`; `"int?"` may be None;
`"text|dict"` is either), a `Section` a dict of its own; constructors check the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NoReturn

from devrun.config.numbers import (
    MOST_THREADS,
    MOST_WORKERS,
    check_finite,
    is_finite,
    is_limit,
    is_number,
    is_seed,
    parsed_duration,
)
from devrun.config.origin import config_error, describe, hint_for, shown_value
from devrun.config.revisions import revisions
from devrun.config.tree import ConfigDict, children, origin_of
from devrun.device_facts import FACTS, OWN_FACTS, DeviceFacts
from devrun.errors import ConfigTypeError
from devrun.place import COMMAND_LINE
from devrun.redact import MASK


@dataclass(frozen=True)
class Section:
    """A dict with known keys.

    Unknown ones are refused, unless `open`, or unless its `type` names a class
    outside `types`, whose constructor then judges them.
    """

    keys: Mapping[str, str | Section] = field(default_factory=dict)
    types: Collection[str] = ()
    open: bool = False
    optional: bool = True


_LOADER: dict[str, str | Section] = {
    "batch_size": "count",
    "samples_per_gpu": "count",
    "num_workers": "workers",
    "workers_per_gpu": "workers",
    "shuffle": "flag",
    "drop_last": "flag",
    "pin_memory": "flag",
    "persistent_workers": "flag",
    "prefetch_factor": "count?",
    "timeout": "number",
    "multiprocessing_context": "text?",
    "seed": "seed?",
    "sampler": "dict?",
    "sampler_cfg": "dict?",
    "mode": "text?",
    "buckets": "dict?",
    "collate_fn": "any",
    "batch_transform": "dict|list?",
}
_DATASET = "dict|list?"

_GRAD_CLIP = {
    "max_norm": "positive",
    "norm_type": "positive|text",
    "clip_value": "positive",
    "error_if_nonfinite": "flag",
    "foreach": "flag?",
}
GRAD_CLIP = frozenset(_GRAD_CLIP)
"""What `grad_clip` of `optimizer_config` takes."""

PARALLEL = Section(
    {
        "type": "text?",
        "mesh": Section({"replicate": "count", "shard": "count", "tensor": "count"}),
        "static_graph": "flag?",
        "gradient_as_bucket_view": "flag?",
        "find_unused_parameters": "flag?",
        "broadcast_buffers": "flag?",
        "bucket_cap_mb": "count?",
        "sync_bn": "flag?",
        "wrap": "text|list?",
        "reshard": "flag?",
        "offload": "flag?",
        "plan": "dict?",
    }
)

UNUSED = (
    "diff_seed",
    "gpu_ids",
    "gpus",
    "init_kwargs",
    "mkl_num_threads",
    "mp_start_method",
    "opencv_num_threads",
    "paramwise_cfg",
    "test_cfg",
    "train_cfg",
)
"""MMCV's keys that are accepted so that its configs load, and do nothing here; a run
that has one of them says so."""


USUAL_HELPERS = re.compile(
    r"(ann_file|data_root|dataset_type|img_norm_cfg|norm_cfg|classes|class_names"
    r"|CLASSES|crop_size|img_scale|img_size|\w+_pipeline|channel_cfg|dataset_info"
    r"|policy_imagenet|\w*policies)(_\w+)?"
)
"""Variables of published configs, which some leave unused."""
_RUNNERS = {
    "total_epochs": ("EpochBasedRunner", "max_epochs"),
    "total_iters": ("IterBasedRunner", "max_iters"),
}
"""Key of older configs -> the `type` and the limit of the `runner` section that it
stands for."""


def give_runner(cfg: Any) -> None:
    """Make the `runner` of `cfg` from `total_epochs` or `total_iters`, if it has none.

    As in MMCV's tools. Beside a `runner` with a type, the key stays, and is refused.
    """
    for key, (kind, limit) in _RUNNERS.items():
        runner = cfg.get("runner") or {}
        if cfg.get(key) is None or not isinstance(runner, dict) or "type" in runner:
            continue
        made = {"runner.type": kind}
        if limit not in runner:  # --cfg-options may have given it
            made[f"runner.{limit}"] = cfg[key]
        cfg.merge_from_dict(made, origin=origin_of(cfg._cfg_dict, key) or COMMAND_LINE)
        del cfg[key]


def _of_devices(what: str, facts: Mapping[str, DeviceFacts]) -> dict[str, Any]:
    pairs = (getattr(each, what).items() for each in facts.values())
    return dict(chain.from_iterable(pairs))


def _device_keys(facts: Mapping[str, DeviceFacts]) -> dict[str, str]:
    """A section of each device, and the keys that set an option of one."""
    options = _of_devices("top_level_options", facts)
    kinds = {key: kind for key, (_, kind) in options.items()}
    return {**dict.fromkeys(facts, "dict?"), **kinds}


KEYS: dict[str, str | Section] = {
    # what is trained
    "model": "dict",
    "sampler": "dict?",
    "loss": "dict?",
    "val_loss": "dict?",
    "freeze": "text|list?",
    "gradient_checkpointing": "flag|text|list?",
    "data": Section(
        {
            **_LOADER,
            "train": _DATASET,
            "val": _DATASET,
            "test": _DATASET,
            "val_phase": _DATASET,
            "train_dataloader": Section(_LOADER),
            "val_dataloader": Section(_LOADER),
            "test_dataloader": Section(_LOADER),
        },
        types=("",),  # one with a `type` is a data module, which judges the rest
        optional=False,
    ),
    # how it is optimised
    "optimizer": "dict?",
    "optimizer_config": Section(
        {
            "type": "text",
            "grad_clip": Section(_GRAD_CLIP),
            "cumulative_iters": "count",
            "detect_anomalous_params": "flag",
            "loss_scale": "number|text|dict",
            "coalesce": "flag",
            "bucket_size_mb": "int",
            "distributed": "flag",
            "precision": "text",
            "nonfinite": "text",
            "micro_batch": "text|count?",
            "mean_over": "text",
            "options": "dict?",
        },
        types=(
            "OptimizerHook",
            "Fp16OptimizerHook",
            "GradientCumulativeOptimizerHook",
            "GradientCumulativeFp16OptimizerHook",
        ),
    ),
    "fp16": Section(
        {
            "loss_scale": "number|text|dict",
            "type": "text",
            "dtype": "text",
            "enabled": "flag",
            "accum_type": "text",
            "velocity_accum_type": "text",
        }
    ),
    "auto_scale_lr": Section({"enable": "flag", "base_batch_size": "count"}),
    "lr_config": Section({"policy": "text", "type": "text"}, open=True),
    "momentum_config": Section({"policy": "text", "type": "text"}, open=True),
    # how long, and what happens on the way
    "runner": Section(
        {
            "type": "text",
            "max_epochs": "count?",
            "max_iters": "count?",
            "constructor": "text",
            "fp16_cfg": "dict?",
            "max_time": "duration?",
            "limit_train": "limit?",
            "limit_val": "limit?",
            **_of_devices("runner_options", OWN_FACTS),
        },
        types=("EpochBasedRunner", "IterBasedRunner", "Runner"),
    ),
    "workflow": "workflow",
    "checkpoint_config": Section(
        {
            "type": "text",
            "interval": "int",
            "by_epoch": "flag",
            "save_optimizer": "flag",
            "out_dir": "text?",
            "max_keep_ckpts": "int",
            "save_last": "flag",
            "sync_buffer": "flag",
            "full": "flag?",
            "async": "flag",
            "file_client_args": "dict?",
            "filename_tmpl": "text",
            "create_symlink": "flag",
            "meta": "dict?",
            "priority": "text|int",
        },
        types=("CheckpointHook",),
    ),
    "log_config": Section({"interval": "count", "hooks": "list"}),
    "evaluation": Section({"interval": "count", "start": "size?"}, open=True),
    "custom_hooks": "list?",
    "custom_imports": Section(
        {"imports": "text|list?", "allow_failed_imports": "flag"}
    ),
    "default_scope": "text?",
    "timer_config": "dict?",
    "watchdog": Section({"timeout": "number", "first_timeout": "number?"}),
    "benchmark": Section(
        {
            "target": "target",
            "rule": "text",
            "runs": "count",
            "benchmark": "text",
            "org": "text",
        }
    ),
    # where it runs
    "device": "text|dict?",
    **_device_keys(OWN_FACTS),
    "dist_params": "dict?",
    "launcher": "text?",
    "find_unused_parameters": "flag",
    "sync_bn": "flag?",
    "parallel": PARALLEL,
    "auto_resume": "flag",
    # the process
    "work_dir": "text?",
    "load_from": "text?",
    "revise_keys": "list?",
    "resume_from": "text?",
    "allow_changes": "flag",
    "seed": "seed?",
    "deterministic": "flag",
    "log_level": "text|int",
    "omp_num_threads": "threads",
    "cudnn_benchmark": "flag",
    "performance": "text?",
    **dict.fromkeys(UNUSED, "any"),
}

_FINITE = (
    "optimizer",
    "optimizer_config",
    "fp16",
    "lr_config",
    "momentum_config",
    "runner",
    "checkpoint_config",
    "log_config",
    "timer_config",
    "watchdog",
)
"""Sections in which no number may be nan, infinite or beyond a float."""
_MAY_BE_INFINITE = ("max_norm", "norm_type", "clip_value")
"""Where infinity has a meaning: the largest gradient, or none that is clipped."""
_NO_NAN = ("evaluation", "custom_hooks")
"""Sections of classes that may know what to do with an infinite number."""
_NUMBER = re.compile(r"[-+]?\d+\.?\d*(e[-+]?\d+)?", re.IGNORECASE)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and is_number(value) and abs(value) < 2**63


def _is_workflow(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(step, (list, tuple))
        and len(step) == 2
        and isinstance(step[0], str)
        and _is_int(step[1])
        and step[1] > 0
        for step in value
    )


def _is_target(value: Any) -> bool:
    one = isinstance(value, dict) and len(value) == 1
    return one and all(is_finite(number) for number in value.values())


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "text": ("text", lambda value: isinstance(value, str)),
    "flag": ("true or false", lambda value: isinstance(value, bool)),
    "int": ("an integer", _is_int),
    "count": ("an integer of at least 1", lambda v: _is_int(v) and v >= 1),
    "size": ("an integer of at least 0", lambda v: _is_int(v) and v >= 0),
    "workers": (
        f"an integer from 0 to {MOST_WORKERS}",
        lambda v: _is_int(v) and 0 <= v <= MOST_WORKERS,
    ),
    "threads": (
        f"an integer from 1 to {MOST_THREADS}",
        lambda v: _is_int(v) and 1 <= v <= MOST_THREADS,
    ),
    "seed": ("an integer from 0 to 2**63 - 1", is_seed),
    "limit": ("an integer of at least 1, or a fraction such as 0.1", is_limit),
    "duration": (
        "seconds, or text such as 2h or 1h30m",
        lambda value: parsed_duration(value) is not None,
    ),
    "number": ("a finite number", is_finite),
    "positive": ("a number above 0", lambda v: is_number(v) and v > 0),
    "list": ("a list", lambda value: isinstance(value, (list, tuple))),
    "target": ("one result and its number, as {accuracy: 0.99}", _is_target),
    "dict": ("a dict", lambda value: isinstance(value, dict)),
    "any": ("anything", lambda value: True),
    "workflow": (
        "a list of phases and counts from 1, such as [('train', 1), ('val', 1)]",
        _is_workflow,
    ),
}


def check_config(cfg: Any) -> None:
    """Refuse what no part of devrun reads, and values of the wrong kind.

    `cfg` is a Config or a dict. Of a Config, variables that its file reads itself
    (`train_pipeline`) are let through, and keys that begin with `x-` or `_`.

    Raises:
        ConfigError: `file:line: key: reason`, with the nearest known name.
    """
    helpers = getattr(cfg, "__dict__", {}).get("_helpers", ())
    tree = getattr(cfg, "__dict__", {}).get("_cfg_dict", cfg)
    if not isinstance(tree, dict):
        raise ConfigTypeError(f"a configuration is a dict, not {describe(tree)}")
    device = tree.get("device")  # one from outside may have a section of its name
    device = device.get("type") if isinstance(device, dict) else device
    for key, value in tree.items():
        path = (key,)
        if key in KEYS:
            check_value(tree, key, value, KEYS[key], path)
        elif key in _RUNNERS:
            kind, limit = _RUNNERS[key]
            reason = f"no longer read; write runner = dict(type={kind!r}, {limit}=...)"
            raise config_error(reason, origin_of(tree, key), path)
        elif not (
            key == device
            or key in helpers
            or USUAL_HELPERS.fullmatch(str(key))
            or str(key).startswith(("x-", "_"))
        ):
            if key in (others := _device_keys(FACTS)):  # of another package's device
                check_value(tree, key, value, others[key], path)
                continue
            if owners := sections_with(key):
                reason = f"unknown key; it belongs to the section {' or '.join(owners)}"
                raise config_error(reason, origin_of(tree, key), path)
            _unknown(tree, key, KEYS, path, " (or remove it)")
    if tree.get("revise_keys") is not None:
        try:
            revisions(tree["revise_keys"])
        except ValueError as error:
            place = origin_of(tree, "revise_keys")
            raise config_error(str(error), place, ("revise_keys",)) from None
    benchmark = tree.get("benchmark")
    if benchmark is not None:
        found = benchmark.get("target")
        check_value(benchmark, "target", found, "target", ("benchmark", "target"))
    for key in _FINITE:
        check_finite(tree.get(key), (key,), but=_MAY_BE_INFINITE)
    for key in _NO_NAN:
        check_finite(tree.get(key), (key,), infinite=True)
    _refuse_masked(tree, ())


def sections_with(name: Any) -> list[str]:
    """The sections of a config that have a key of this name."""
    sections = [(at, rule) for at, rule in KEYS.items() if isinstance(rule, Section)]
    return [at for at, rule in sections if name in rule.keys]


def unused(cfg: Any) -> list[str]:
    """Keys of `UNUSED` that `cfg` has, but for variables that its file reads."""
    helpers = getattr(cfg, "__dict__", {}).get("_helpers", ())
    return [key for key in UNUSED if cfg.get(key) and key not in helpers]


def check_value(
    node: Any, key: Any, value: Any, rule: str | Section, path: tuple[Any, ...]
) -> None:
    """Refuse a `value`, at `key` of `node` in `path`, that is not as `rule` says.

    Raises:
        ConfigError: as `check_config`.
    """
    if isinstance(rule, str):
        names = rule.rstrip("?").split("|")
        if (value is None and rule.endswith("?")) or any(
            _KINDS[name][1](value) for name in names
        ):
            return
        reason = (
            f"takes {wanted(rule)}, not {shown_value(value, path)}{_number_hint(value)}"
        )
        raise config_error(reason, origin_of(node, key), path, ConfigTypeError)
    if value is None and rule.optional:
        return
    if not isinstance(value, dict):
        reason = f"takes a dict, not {shown_value(value, path)}"
        raise config_error(reason, origin_of(node, key), path, ConfigTypeError)
    foreign = bool(rule.types) and value.get("type", None) not in (None, *rule.types)
    for name, child in value.items():
        if name in rule.keys:
            check_value(value, name, child, rule.keys[name], (*path, name))
        elif not (rule.open or foreign):
            # of another package's device
            others = _of_devices("runner_options", FACTS) if path == ("runner",) else {}
            if name not in others:
                _unknown(value, name, rule.keys, (*path, name))
            check_value(value, name, child, others[name], (*path, name))


def wanted(rule: str | Section) -> str:
    """What a key takes, in words."""
    if isinstance(rule, Section):
        return "a dict"
    return " or ".join(_KINDS[kind][0] for kind in rule.rstrip("?").split("|"))


def _number_hint(value: Any) -> str:
    if not (isinstance(value, str) and _NUMBER.fullmatch(value)):
        return ""
    return ", which is text; a number has no quotes"


def _unknown(
    node: Any,
    key: Any,
    known: Mapping[str, Any],
    path: tuple[Any, ...],
    advice: str = "",
) -> NoReturn:
    reason = f"unknown key; {hint_for(key, known)}{advice}"
    raise config_error(reason, origin_of(node, key), path)


def _refuse_masked(node: Any, path: tuple[Any, ...]) -> None:
    """A dumped configuration holds `******` where its secrets were."""
    for key, value in children(node):
        if value == MASK and isinstance(node, ConfigDict):
            reason = "the secret was masked; give it as ${env:NAME}"
            raise config_error(reason, origin_of(node, key), (*path, key))
        _refuse_masked(value, (*path, key))
