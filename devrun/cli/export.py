"""`devrun export CHECKPOINT`: weights, a model or a training step, for others."""

from __future__ import annotations

import argparse
import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from devrun.cli.console import complain, say
from devrun.cli.exits import Session
from devrun.cli.flags import add_trust_flags, import_modules, trusted
from devrun.cli.parser import switch
from devrun.cli.workdir import chosen_checkpoint
from devrun.config import Config
from devrun.errors import CheckpointError, ConfigError
from devrun.files import user_path
from devrun.text import LINE, escape

WEIGHTS_ONLY = ("mmcv", "torch", "safetensors")
PROGRAMS = ("onnx", "pt2", "aoti")
WEIGHTS = ("trained", "evaluated")
IMPORTERS = ("nnfusion", "halo", "onnxruntime")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `devrun export`."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="of devrun; of a work_dir the newest")
    form = (
        "of the weights, mmcv: a .pth of MMCV's runner, torch: a .pth as torch.save "
        "makes, safetensors; of the whole model, onnx, pt2: of torch.export, aoti: "
        "machine code by AOTInductor"
    )
    formats = (*WEIGHTS_ONLY, *PROGRAMS)
    add("--format", choices=formats, help=f"{form}; default: mmcv")
    whole = "a whole update, with its loss, backward and optimizer, as ONNX in opset 12"
    add("--step", choices=("train",), help=whole)
    taker = "who takes that; default: onnxruntime"
    add("--for", choices=IMPORTERS, dest="importer", help=taker)
    add("-o", "--output", metavar="FILE", help="default: CHECKPOINT.pth beside it")
    averaged = "evaluated: the averaged ones, where an EMAHook kept some"
    averaged += ", as a program has by default"
    add("--weights", choices=WEIGHTS, help=averaged)
    add("--opset", type=int, metavar="N", help="of --format onnx")
    switch(parser, "--overwrite", "replace FILE if it exists")
    add_trust_flags(parser)
    parser.set_defaults(config=".")  # beside which `--import` looks too


def run(args: argparse.Namespace, session: Session) -> int:
    """Verify the checkpoint, then write the file."""
    from devrun.checkpoint import export_weights
    from devrun.checkpoint.mmcv_format import FORMATS
    from devrun.export.programs import SUFFIXES

    _check_flags(args)
    source = user_path(chosen_checkpoint(args.checkpoint))
    suffix = {**FORMATS, **SUFFIXES}[args.format]
    target = user_path(args.output or f"{source.absolute()}{suffix}")
    if target.suffix != suffix:
        raise CheckpointError(
            f"--output {str(target)!r} must end in {suffix}, by which others know it"
        )
    for file in _written(args, target):
        if file.is_dir() or (file.exists() and not args.overwrite):
            replace = "" if file.is_dir() else "--overwrite or "
            raise CheckpointError(
                f"{str(file)!r} exists; give {replace}another --output"
            )
    if args.step:
        return _export_step(args, source, target)
    if args.format in PROGRAMS:
        return _export_program(args, source, target)
    averaged = args.weights == "evaluated"
    export_weights(source, target, form=args.format, averaged=averaged)
    say(f"written: {escape(target, LINE)}")
    return 0


def _written(args: argparse.Namespace, target: Path) -> list[Path]:
    """The files that the command writes."""
    beside = [".json"] if args.format in PROGRAMS else []
    if args.step:
        beside.append(".safetensors")
    return [target, *(target.with_name(target.name + ending) for ending in beside)]


def _check_flags(args: argparse.Namespace) -> None:
    """Settle the format, and refuse flags that are of another one."""
    if args.importer and not args.step:
        raise ConfigError("--for is of --step train, which is what it takes")
    args.format = args.format or ("onnx" if args.step else "mmcv")
    if args.step:
        fixed = {"--opset": args.opset, "--weights": args.weights}
        given = [flag for flag, value in fixed.items() if value is not None]
        if args.format != "onnx":
            given.append(f"--format {args.format}")
        if given:
            raise ConfigError(
                f"{given[0]} goes not with --step train, which is ONNX in opset 12 and "
                "goes on from the trained weights"
            )
    elif args.opset is not None and args.format != "onnx":
        raise ConfigError(f"--opset is of --format onnx, not of {args.format}")


def _export_step(args: argparse.Namespace, source: Path, target: Path) -> int:
    """An update of the run as a graph, its facts and its state beside it."""
    from devrun.cli.record import versions
    from devrun.config.origin import redacted
    from devrun.export.handoff import UPDATES, alike, write_step
    from devrun.log.logger import quieted
    from devrun.runners.trial import trial

    cfg, found = _stored(args, source)
    if "optimizer" not in found.manifest.parts:
        raise CheckpointError(
            f"{str(source)!r} has no optimizer state, from which a training step goes "
            "on: train with checkpoint_config.save_optimizer"
        )
    importer = args.importer or "onnxruntime"
    with trusted(args), trial(cfg, UPDATES, device="cpu") as training:
        runner = training.runner
        with quieted(logging.INFO):
            runner.resume(str(source), allow_changes=True)
        runner.prepare()
        _refuse_gradient_hooks(runner)
        facts = {
            "format": "onnx",
            "model": runner.model_name,
            "checkpoint": str(source),
            "data": redacted(Config(cfg["data"]["train"]).to_dict()),
            "versions": versions(),
        }
        loader = runner.loader(training.loaders[0], training=True)
        batches = alike(loader, UPDATES)
        done = write_step(runner.session, batches, target, importer, facts)
    others = ", ".join(escape(file.name, LINE) for file in done.files[1:])
    say(f"written: {escape(target, LINE)}, for {importer}; beside it {others}")
    worst = f"largest difference {done.largest_difference:.2g}"
    say(f"{UPDATES} updates in onnxruntime compared with the run's: {worst}")
    if done.parted:
        say(f"{done.parted} more parted where a rounding decided, as of a ReLU at 0")
    if done.left_out:
        say(f"not compared: {done.left_out} weights whose gradient is a rounding error")
    for warning in done.warnings:
        complain(warning, "warning")
    return 0


def _refuse_gradient_hooks(runner: Any) -> None:
    for hook in runner.hooks:
        if "after_backward" in hook.get_triggered_stages():
            raise ConfigError(
                f"{type(hook).__name__}.after_backward may change gradients, which the "
                "exported step would not: export a run without that hook"
            )


def _export_program(args: argparse.Namespace, source: Path, target: Path) -> int:
    """The model as a program that needs no devrun, and its facts beside it."""
    from devrun.cli.record import versions
    from devrun.config.origin import redacted
    from devrun.export.inference import inference_of
    from devrun.export.programs import manifest_of, write_program

    with trusted(args), _evaluated(args, source) as (runner, batch, cfg, kind):
        model, inputs = inference_of(runner.session.step_module, batch)
        facts = {
            "format": args.format,
            "model": runner.model_name,
            "checkpoint": str(source),
            "weights": kind,
            "data": redacted(Config(cfg["data"]["val"]).to_dict()),
            "versions": versions(),
        }
        how: dict[str, Any] = {"opset": args.opset, "facts": facts}
        done = write_program(model, inputs, target, args.format, **how)
    beside = manifest_of(target)
    say(f"written: {escape(target, LINE)}, its inputs and data in {beside.name}")
    say(f"compared with the model: largest difference {done.largest_difference:.2g}")
    return 0


@contextmanager
def _evaluated(
    args: argparse.Namespace, source: Path
) -> Iterator[tuple[Any, Any, Any, str]]:
    """The run with its saved weights on the CPU, a batch, its config and which weights
    it has."""
    from devrun.checkpoint.mmcv_format import averaged_weights, needed_average
    from devrun.runners.trial import trial

    cfg, found = _stored(args, source)
    data = cfg["data"]
    data["val"] = data.get("val") or data.get("test") or data.get("train")
    cfg.merge_from_dict({"compile": None, "evaluation": {}})
    short = trial(cfg, 0, evaluate=1, initialise=False, device="cpu")
    with short as training:
        runner = training.runner
        runner.load_checkpoint(str(source), strict=True)
        averages = averaged_weights(found) is not None
        kind = args.weights or ("evaluated" if averages else "trained")
        if kind == "evaluated":
            averaged = needed_average(found, source)
            runner.model.load_state_dict(averaged, strict=False)
        (hook,) = (one for one in runner.hooks if hasattr(one, "loaders"))
        loader = next(iter(hook.loaders.values()))
        yield runner, next(iter(loader)), cfg, kind


def _stored(args: argparse.Namespace, source: Path) -> tuple[Any, Any]:
    """The config in a checkpoint, for one process, and what else is read of it."""
    from devrun.checkpoint import read_checkpoint

    found = read_checkpoint(source, parts=["trainer", "hooks"])
    stored = found["trainer"].get("config")
    if not isinstance(stored, dict) or not isinstance(stored.get("data"), dict):
        raise CheckpointError(
            f"{str(source)!r} holds no config of a run with data, which a program is "
            "made of and compared on; --format safetensors writes its weights"
        )
    cfg: Any = Config(copy.deepcopy(stored))
    cfg.merge_from_dict({"parallel": None})
    import_modules(args, cfg)
    return cfg, found
