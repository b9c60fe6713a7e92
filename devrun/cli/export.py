"""`devrun export CHECKPOINT`: a checkpoint's weights as a file for other programs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.cli.flags import add_trust_flags, import_modules, trusted
from devrun.cli.parser import switch
from devrun.cli.workdir import chosen_checkpoint
from devrun.config import Config
from devrun.errors import CheckpointError, ConfigError
from devrun.files import user_path
from devrun.text import LINE, escape

FORMATS = ("mmcv", "torch", "safetensors")
WEIGHTS = ("trained", "evaluated")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `devrun export`."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="of devrun; of a work_dir the newest")
    form = "mmcv: a .pth of MMCV's runner; torch: a .pth of the bare weights"
    add("--format", choices=FORMATS, default="mmcv", help=form)
    add("--output", metavar="FILE", help="default: CHECKPOINT.pth beside it")
    averaged = "evaluated: the averaged ones, where an EMAHook kept some"
    add("--weights", choices=WEIGHTS, default="trained", help=averaged)
    switch(parser, "--overwrite", "replace FILE if it exists")
    add_trust_flags(parser)
    parser.set_defaults(config=".")  # beside which `--import` looks too


def run(args: argparse.Namespace, session: Session) -> int:
    """Verify the checkpoint, then write the file."""
    from devrun.checkpoint import export_weights
    from devrun.checkpoint.mmcv_format import FORMATS as SUFFIXES

    source = user_path(chosen_checkpoint(args.checkpoint))
    suffix = SUFFIXES[args.format]
    target = user_path(args.output or f"{source.absolute()}{suffix}")
    if target.suffix != suffix:
        raise CheckpointError(
            f"--output {str(target)!r} must end in {suffix}, by which others know it"
        )
    if target.exists() and not args.overwrite:
        raise CheckpointError(
            f"{str(target)!r} exists; give --overwrite or another --output"
        )
    with trusted(args):
        export_weights(
            source,
            target,
            form=args.format,
            averaged=args.weights == "evaluated",
            merge=_merger(args, source),
        )
    say(f"written: {escape(target, LINE)}")
    return 0


def _merger(args: argparse.Namespace, source: Path) -> Callable[[Any, Any], Any]:
    """What merges the adapters of a run into its weights: it needs the model."""

    def merge(cfg: Any, weights: Any) -> Any:
        import_modules(args, Config(cfg))
        from devrun.checkpoint.fitting import load_state_dict
        from devrun.models.build import build_model
        from devrun.models.peft import adapt, merge_adapters

        for key in ("model", "peft"):
            if not isinstance(cfg.get(key), dict):
                raise CheckpointError(
                    f"the config in {str(source)!r} has no section {key!r}, which the "
                    "merging of its adapters needs"
                )
        try:
            model = build_model(cfg["model"])
            adapt(model, cfg["peft"])
        except ConfigError as error:
            raise ConfigError(f"the config in {str(source)!r}: {error}") from error
        load_state_dict(model, weights, strict=True, source=str(source))
        merge_adapters(model)
        return model.state_dict()

    return merge
