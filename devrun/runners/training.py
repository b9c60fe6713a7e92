"""`build_training`: a whole training run from one config."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from devrun.config.dump import to_plain
from devrun.config.revisions import MODULE
from devrun.config.schema import unused
from devrun.config.tree import where
from devrun.data.build import VAL_PHASE, build_dataloader, build_loaders, loader_options
from devrun.data.collate import TransformedBatch
from devrun.data.facts import check_labels
from devrun.device_facts import FACTS, DeviceFacts
from devrun.devices.base import DeviceAdapter
from devrun.devices.device_section import (
    adapter_of,
    device_sections,
    device_spec,
    parallel_argument,
)
from devrun.devices.seeding import rng_of, seed_streams
from devrun.dist import check_launcher, shared_seed
from devrun.errors import ConfigError, DevrunError, UnsupportedFeatureError
from devrun.hooks.base import Priority
from devrun.hooks.evaluation import EvalHook
from devrun.hooks.simple import MaxTimeHook
from devrun.interop import translated
from devrun.models.build import build_model, give_first_weights, loss_of
from devrun.models.layers import complete
from devrun.models.names import freeze, frozen_norms
from devrun.models.recompute import checkpoint_blocks
from devrun.optim import build_optimizer
from devrun.registry import HOOKS, build_from_cfg
from devrun.runners.agreement import check_config
from devrun.runners.helpers import build_runner
from devrun.runners.runner import BaseRunner
from devrun.scopes import within
from devrun.step import Capability
from devrun.trust import built_from_config

logger = logging.getLogger("devrun")

_FP32 = ("OptimizerHook", "GradientCumulativeOptimizerHook")
_FP16 = ("Fp16OptimizerHook", "GradientCumulativeFp16OptimizerHook")
_FP16_OPTIONS = ("accum_type", "velocity_accum_type")


@dataclass(frozen=True)
class Training:
    """A runner with everything registered, and what it will run over."""

    runner: BaseRunner
    loaders: list[Any]
    workflow: list[tuple[str, int]]
    cfg: Mapping[str, Any]

    def run(self) -> None:
        """Train to the end of the schedule."""
        with self.located():
            self.runner.run(self.loaders, self.workflow)

    def make_room(self) -> None:
        """Divide the model among the ranks before a file is read.

        Each then needs room for its share of the file alone.
        """
        if self.runner.adapter.parallel.divides(self.runner.world_size):
            with self.located():
                self.runner.prepare()

    @contextmanager
    def located(self) -> Iterator[None]:
        """What only loaders, model or device show to be wrong gets its line in cfg."""
        try:
            yield
        except DevrunError as error:
            for owner in (
                self.cfg,
                *device_sections(self.cfg, self.runner.adapter.name),
                *_update_sections(self.cfg),
                self.cfg.get("parallel") or {},
            ):
                if error.key in owner:
                    place = where(owner, error.key)
                    named = where(owner.get(error.key or ""), "type").origin
                    if named and place.origin and named.file != place.origin.file:
                        # it goes into a section of another file
                        place = replace(place, origin=named)
                    error.locate(place)
            raise


def _update_sections(cfg: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The sections in which parts of the update stand."""
    sections = [cfg.get("optimizer_config"), cfg.get("fp16")]
    sections += [(each or {}).get("options") for each in sections]
    return [each for each in sections if isinstance(each, Mapping)]


def build_training(
    cfg: Mapping[str, Any],
    *,
    validate: bool = True,
    sanity: int = 0,
    initialise: bool = True,
    progress: bool | None = None,
    allow_pickle: str | None = None,
    only: str | None = None,
    building: AbstractContextManager[Any] | None = None,
) -> Training:
    """Build what `cfg` describes; the device is claimed before anything is loaded.

    Args:
        cfg: a checked config; it is not changed.
        validate: register the evaluation hook where there is a val data set.
        sanity: batches of the evaluation that are tried before the first update.
        initialise: give a model with an `init_cfg` its first weights.
        progress: show a progress bar; None decides by whether there is a terminal.
        allow_pickle: a file among `resume_from` and `load_from` whose code may run.
        only: the split of a data module that is evaluated, and nothing else read.
        building: within which the model is built, such as on tensors without values.

    Raises:
        DevrunError: one line for whatever in `cfg` cannot be used.
    """
    cfg, scope, own_loaders = translated(cfg)
    _check_sections(cfg, "model", "data", "runner")
    if ignored := unused(cfg):
        logger.warning("not used by devrun: %s", ", ".join(ignored))
    if cfg.get("omp_num_threads"):
        torch.set_num_threads(cfg["omp_num_threads"])
    check_launcher(cfg.get("launcher") or "none")
    adapter = adapter_of(cfg)
    with ExitStack() as undo:
        undo.callback(adapter.teardown)
        adapter.setup(None)  # the ranks must be joined to agree on a seed
        check_config(cfg)
        with within(scope), built_from_config():
            training = _built(
                cfg,
                adapter,
                own_loaders=own_loaders,
                validate=validate,
                initialise=initialise,
                only=only,
                building=building or nullcontext(),
            )
        for hook in training.runner.hooks:
            if isinstance(hook, EvalHook):
                hook.tries_first = sanity
        if progress is not False:
            bar = build_from_cfg({"type": "ProgressHook"}, HOOKS)
            training.runner.register_hook(bar, Priority.LOWEST)
        _load(training, cfg, allow_pickle=allow_pickle)
        undo.pop_all()
    return training


def _built(
    cfg: Mapping[str, Any],
    adapter: DeviceAdapter,
    *,
    own_loaders: Callable[..., tuple[list[Any], Any]] | None,
    validate: bool,
    initialise: bool,
    only: str | None,
    building: AbstractContextManager[Any],
) -> Training:
    seed = shared_seed(cfg.get("seed"))
    seed_streams(seed, 0)  # the same first weights on every rank
    with building:
        model = build_model(cfg["model"])
        if initialise:
            give_first_weights(model)
    kept_in_eval = tune(model, cfg, adapter)
    loss = loss_of(cfg)
    workflow = [(mode, times) for mode, times in cfg.get("workflow", [("train", 1)])]
    if own_loaders is None:
        loaders, val_loader = _loaders(cfg["data"], workflow, validate)
    else:
        loaders, val_loader = own_loaders(workflow, only, validate)
    _take_transform(model, adapter, zip(workflow, loaders))
    _check_data(cfg["model"], model, [*loaders, val_loader])
    _check_targets(model, loss, cfg["data"])
    optimizer = cfg.get("optimizer") and build_optimizer(model, cfg["optimizer"])
    runner = build_runner(
        _runner_section(cfg),
        {
            "model": model,
            "loss": loss,
            "optimizer": optimizer,
            "work_dir": cfg.get("work_dir"),
            "meta": {"seed": seed},
            "device": adapter,
            **parallel_argument(cfg),
            "seed": seed,
        },
    )
    complete(runner.session.step_module, loaders[0])
    contract = runner.session.contract
    if optimizer is None and not (contract and contract.brings_optimizer):
        _check_sections(cfg, "optimizer")
    runner.session.step_module.kept_in_eval = kept_in_eval
    runner.session.keep_seed(cfg.get("seed") is not None)
    runner.checkpointer.keep_config(to_plain(cfg))
    _register_hooks(runner, cfg)
    runner.session.count_batches(loaders, workflow)
    _scale_lr(cfg, optimizer, loaders[0], runner)
    if val_loader is not None:
        _register_evaluation(runner, cfg, val_loader)
    return Training(runner, loaders, workflow, cfg)


def _scale_lr(
    cfg: Mapping[str, Any], optimizer: Any, loader: Any, runner: BaseRunner
) -> None:
    """Multiply each `lr` by samples an update / `base_batch_size`, if `enable` is set.

    The linear rule of Goyal et al., https://arxiv.org/abs/1706.02677, section 2.1; the
    key and its meaning are MMDetection's.

    Args:
        optimizer: or a dict of several.
        loader: of the training; its `batch_size` is of one process.

    Raises:
        ConfigError: `enable` without `base_batch_size`, or a loader without a size.
    """
    wish = cfg.get("auto_scale_lr") or {}
    if not wish.get("enable"):
        return
    base, size = wish.get("base_batch_size"), getattr(loader, "batch_size", None)
    if base is None or size is None:
        raise ConfigError(
            "auto_scale_lr needs base_batch_size, the samples of an update that lr is "
            "for, and data whose batches have one size",
            place=where(cfg, "auto_scale_lr"),
        )
    batches = runner.policy.accumulate * (device_spec(cfg).get("replicas") or 1)
    samples = size * batches * runner.adapter.data_share[1]  # of an update
    optimizers = optimizer.values() if isinstance(optimizer, dict) else [optimizer]
    for group in (group for one in optimizers for group in one.param_groups):
        group["lr"] *= samples / base
    logger.info(
        "auto_scale_lr: lr times %g, for %d samples an update in place of %d",
        *(samples / base, samples, base),
    )


def _check_sections(cfg: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if cfg.get(name) is None:
            raise ConfigError(
                f"the config has no section {name!r}, which training needs; there "
                f"are: {', '.join(key for key in cfg if cfg[key] is not None)}"
            )


def _runner_section(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """The section without what other parts of a training read."""
    section: dict[str, Any] = copy(cfg["runner"])  # keeps where it was written
    for key in (
        "fp16_cfg",
        "max_time",
        *(k for f in FACTS.values() for k in f.runner_options),
    ):
        section.pop(key, None)
    section.setdefault("type", "EpochBasedRunner")
    return section


def _register_hooks(runner: BaseRunner, cfg: Mapping[str, Any]) -> None:
    runner.register_training_hooks(
        cfg.get("lr_config"),
        _optimizer_section(cfg, runner.adapter.name),
        cfg.get("checkpoint_config"),
        cfg.get("log_config") or {"hooks": [{"type": "TextLoggerHook"}]},
        cfg.get("momentum_config"),
        cfg.get("timer_config"),
        custom_hooks_config=cfg.get("custom_hooks"),
    )
    if cfg["runner"].get("max_time") is not None:
        runner.register_hook(MaxTimeHook(cfg["runner"]["max_time"]))
    if cfg.get("watchdog") is not None:
        section = {"type": "WatchdogHook", **cfg["watchdog"]}
        runner.register_hook(build_from_cfg(section, HOOKS))
    if cfg.get("benchmark") is not None:
        section = copy(cfg["benchmark"])  # keeps where it was written
        section.update(type="MLPerfLoggerHook", seed=runner.seed)
        section.pop("runs", None)  # of the command
        runner.register_hook(build_from_cfg(section, HOOKS))


def _optimizer_section(cfg: Mapping[str, Any], device: str) -> Mapping[str, Any] | None:
    """`optimizer_config` with MMCV's separate `fp16` section folded in.

    What that says of the arithmetic is for devices with options in `runner` only.
    """
    fp16 = cfg.get("fp16") or (cfg.get("runner") or {}).get("fp16_cfg")
    if cfg.get("optimizer_config") is None and fp16 is None:
        return None
    section = copy(cfg.get("optimizer_config") or {})  # keeps where it was written
    if fp16 is None:
        return section
    fp16 = dict(fp16)
    own = {name: fp16.pop(name) for name in _FP16_OPTIONS if name in fp16}
    if own and not (device in FACTS and FACTS[device].runner_options):
        logger.info("fp16: not for this device: %s", ", ".join(own))
    elif own:
        section["options"] = {**(section.get("options") or {}), **own}
    kind = section.get("type", "OptimizerHook")
    if kind not in (*_FP32, *_FP16):
        raise ConfigError(
            f"optimizer_config has a hook of its own, {kind!r}, "
            "which does not read the section fp16: give it those settings itself",
            place=where(cfg, "fp16"),
        )
    cumulative = "Cumulative" in kind or "cumulative_iters" in section
    section.update({"type": _FP16[cumulative], **fp16})
    return section


def _register_evaluation(
    runner: BaseRunner, cfg: Mapping[str, Any], val_loader: Any
) -> None:
    section = copy(cfg.get("evaluation") or {})  # keeps where it was written
    section.setdefault("type", "EvalHook")
    section.setdefault("by_epoch", runner.counts_epochs)
    hook = build_from_cfg(section, HOOKS, {"dataloader": val_loader})
    runner.register_hook(hook, Priority.LOW)


def _load(
    training: Training, cfg: Mapping[str, Any], *, allow_pickle: str | None
) -> None:
    runner = training.runner
    resume_from = cfg.get("resume_from") or ("auto" if cfg.get("auto_resume") else None)
    if resume_from or cfg.get("load_from"):
        training.make_room()
    if resume_from:
        runner.resume(
            resume_from,
            allow_changes=bool(cfg.get("allow_changes")),
            allow_pickle=resume_from == allow_pickle,
        )
    elif cfg.get("load_from"):
        trusted = cfg["load_from"] == allow_pickle
        runner.load_checkpoint(
            cfg["load_from"],
            revise_keys=cfg.get("revise_keys") or MODULE,
            allow_pickle=trusted,
        )


def _loaders(
    data: Mapping[str, Any], workflow: list[tuple[str, int]], validate: bool
) -> tuple[list[Any], Any]:
    """One loader for each phase, and that of the evaluation or None.

    The evaluation has a loader of its own: a val phase may be in the middle of its,
    and have another data set.
    """
    phase = data.get(VAL_PHASE)
    modes = {mode if mode == "val" else "train" for mode, _ in workflow}
    phases = data if phase is None else {**data, "val": phase}
    built = build_loaders(phases, sorted(modes))
    loaders = [built["val" if mode == "val" else "train"] for mode, _ in workflow]
    if not validate or data.get("val") is None:
        return loaders, None
    if "val" not in built or phase is not None:
        return loaders, build_loaders(data, ["val"])["val"]
    if isinstance(built["val"], dict):
        raise ConfigError(
            "a val phase of the workflow reads one data set, and data.val has "
            f"{', '.join(built['val'])}: leave the phase out; an evaluation "
            "reads each",
            place=where(data, "val"),
        )
    options = loader_options(data, "val")
    return loaders, build_dataloader(built["val"].dataset, **options)


def _take_transform(model: Any, adapter: DeviceAdapter, phases: Iterable[Any]) -> None:
    """Have loaders of the training do what the model does to whole batches.

    A compiled graph would do it once and keep it, such as a mixup that draws and
    chooses on the host. A model offers it by `take_batch_transform()`, after which it
    no longer does it itself.
    """
    take = getattr(model, "take_batch_transform", None)
    if take is None or Capability.HOST_WEIGHTS in adapter.capabilities:
        return
    transform = take()
    for loader in {loader for (mode, _), loader in phases if mode != "val"}:
        loader.collate_fn = TransformedBatch(loader.collate_fn, transform)


def _check_data(cfg: Mapping[str, Any], model: Any, loaders: list[Any]) -> None:
    """Labels that the model has no output for, named before they break a step."""
    num_classes = getattr(model, "num_classes", cfg.get("num_classes"))
    if type(num_classes) is not int:
        return
    for given in loaders:
        for loader in given.values() if isinstance(given, dict) else [given]:
            if loader is not None:
                check_labels(loader.dataset, num_classes)


def _check_targets(model: nn.Module, loss: Any, data: Mapping[str, Any]) -> None:
    """Refuse mixed labels for a model that makes its own loss of them.

    Such a loss may take them for several labels at once.
    """
    given = data.get("batch_transform")
    if loss is None and re.search(r"\b(Mix[Uu]p|CutMix)'", repr(given)):
        raise ConfigError.of(
            "batch_transform",
            f"mixes labels, which the own loss of {type(model).__name__} may read "
            "otherwise: give the config a `loss` such as CrossEntropyLoss, or leave "
            "MixUp and CutMix out",
            where(data, "batch_transform"),
        )


# What a config changes in a model --------------------------------------------


def tune(
    model: nn.Module, cfg: Mapping[str, Any], adapter: DeviceAdapter
) -> list[nn.Module]:
    """`freeze` and `gradient_checkpointing`; norms that stay in evaluation mode.

    Raises:
        ConfigError: a section does not fit the model.
        UnsupportedFeatureError: the device cannot do it.
    """
    kept_in_eval: list[nn.Module] = []
    key = ""
    try:
        if cfg.get(key := "freeze"):
            kept_in_eval = freeze(model, cfg[key])
            kept_in_eval = list(dict.fromkeys([*kept_in_eval, *frozen_norms(model)]))
            trained = [p for p in model.parameters() if p.requires_grad]
            logger.info(
                "trained: %d of %d parameters; %d norms keep their statistics",
                sum(parameter.numel() for parameter in trained),
                sum(parameter.numel() for parameter in model.parameters()),
                len(kept_in_eval),
            )
        if cfg.get(key := "gradient_checkpointing"):
            if Capability.RECOMPUTATION not in adapter.capabilities:
                instead = FACTS.get(adapter.name, DeviceFacts()).recomputes_by
                raise UnsupportedFeatureError.of(
                    key,
                    f"is not done on {adapter.name}, which plans the memory of a whole "
                    f"graph: leave it out{f', and take {instead}' if instead else ''}",
                )
            done = checkpoint_blocks(model, cfg[key], rng_of(adapter))
            logger.info("computed again: %s", done)
    except DevrunError as error:
        error.locate(where(cfg, key))
        raise
    return kept_in_eval
