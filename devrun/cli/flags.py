"""The flags of `train`, and what they change in the config."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from devrun.cli.parser import index, positive
from devrun.cli.several import add_launch_flags, number_or_auto
from devrun.config import Config, DictAction
from devrun.config.engine import is_engine_style, reads_bases_lazily
from devrun.config.imports import import_custom, import_named, search_folders
from devrun.config.merge import DELETE
from devrun.config.older import give_runner
from devrun.errors import ConfigError
from devrun.launchers import LAUNCHERS
from devrun.network import downloads_allowed
from devrun.trust import granted


def add_train_flags(parser: argparse.ArgumentParser) -> None:
    """Every flag of `devrun train`, in the groups that its help shows."""
    parser.add_argument("config", metavar="CONFIG", help="a .yaml, .json or .py file")
    add_device_flags(parser.add_argument_group("device"))
    add_launch_flags(parser.add_argument_group("several processes"))
    _state_flags(parser.add_argument_group("what is kept and continued"))
    _run_flags(parser.add_argument_group("run"))


def add_device_flags(group: argparse._ArgumentGroup) -> None:
    """The flags that say where to run; `overrides` reads them."""
    add = group.add_argument
    add(
        "--device",
        type=_word,
        metavar="D",
        help="cpu, cuda, cuda:1, auto, ... (devrun devices)",
    )
    add("--ipu-replicas", type=positive, metavar="N", help="ipu with N replicas")
    add("--gpu-id", type=index, metavar="N", help="MMCV's flag: --device cuda:N")
    add(
        "--gpu-ids",
        type=index,
        nargs="+",
        metavar="N",
        help="the same, of MMCV's older tools; the first is taken",
    )
    add("--gpus", type=positive, metavar="N", help="the same; one GPU is taken")
    add("--emulate", action="store_true", help="run on the device's emulator")
    add(
        "--num-devices",
        type=number_or_auto,
        metavar="N|auto",
        help="start N processes, each with a device; auto: as many as are here",
    )
    add("--launcher", choices=LAUNCHERS, help="who started the processes (none)")
    add(
        "--local_rank",
        "--local-rank",
        type=index,
        metavar="N",
        help="set by older launchers",
    )


def _state_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--work-dir",
        type=_word,
        metavar="DIR",
        help="default: work_dirs/<name of the config>",
    )
    add(
        "--resume-from",
        type=_word,
        metavar="PATH|auto",
        help="go on; auto: the newest good one",
    )
    add(
        "--auto-resume",
        dest="resume_from",
        action="store_const",
        const="auto",
        help="MMCV's flag: --resume-from auto",
    )
    add("--load-from", type=_word, metavar="PATH", help="start with these weights")
    add_weights_flags(group)
    add("--allow-changes", action="store_true", help="go on with a changed config")
    add("--allow-pickle", metavar="FILE", help="run the code that this old .pth names")
    add("--overwrite", action="store_true", help="set the run in work_dir aside")


def add_weights_flags(group: argparse._ActionsContainer) -> None:
    """The flags that say how the keys of loaded weights change and where they are."""
    add = group.add_argument
    add(
        "--revise-keys",
        action="append",
        type=_revision,
        metavar="PATTERN=REPLACEMENT",
        help="rename keys of the weights: '^backbone[.]='; the last = separates",
    )
    add(
        "--allow-download",
        action="store_true",
        help="let weights and what the config builds be downloaded",
    )


def _run_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--no-validate", action="store_true", help="do not evaluate while training")
    add("--seed", type=index, metavar="N", help="of data order and random streams")
    add("--deterministic", action="store_true", help="only deterministic algorithms")
    add(
        "--performance",
        choices=("fast",),
        metavar="fast",
        help="fast: the switches that make this device fast (--dry-run lists them)",
    )
    add(
        "--diff-seed",
        action="store_true",
        help="MMCV's flag: each process draws its own numbers, which is always so",
    )
    add(
        "--auto-scale-lr",
        action="store_true",
        help="lr times the samples of an update / auto_scale_lr.base_batch_size",
    )
    add(
        "--cfg-options",
        nargs="+",
        action=DictAction,
        metavar="KEY=VALUE",
        help="change the config: data.samples_per_gpu=8 model.depth=18",
    )
    add("--dry-run", action="store_true", help="two iterations of each phase, no files")
    add("--find-lr", action="store_true", help="try learning rates, train nothing")
    add("--no-progress", action="store_true", help="plain lines, no progress bar")
    add_trust_flags(group)


def add_trust_flags(group: argparse._ActionsContainer) -> None:
    """The flags that say what a config may import and call; see `trusted`."""
    add = group.add_argument
    add("--import", **_repeated("imports", "MODULE"), help="import a module of yours")
    add(
        "--allow-factory",
        **_repeated("factories", "PATH"),
        help="let the config name this function or class as a type",
    )
    add(
        "--trust-config",
        action="store_true",
        help="let the config run code: a .py as Python, any type, modules beside it",
    )
    add(
        "--mmcv",
        action="store_true",
        help="`from mmcv.runner import ...` in modules of yours gives devrun's names",
    )


def _repeated(dest: str, metavar: str) -> dict[str, Any]:
    return {
        "action": "append",
        "default": [],
        "dest": dest,
        "type": _word,
        "metavar": metavar,
    }


def read_config(args: argparse.Namespace, split: str = "val") -> Config:
    """The config that `args` names, with `--cfg-options`, in devrun's sections.

    Of an MMEngine-style one, `--cfg-options` has the keys of that style.

    Args:
        split: whose evaluator an MMEngine-style config is read for.
    """
    if args.trust_config and reads_bases_lazily(args.config):
        from devrun.interop.mmengine.lazy import read_lazy

        cfg = read_lazy(args.config)
    else:
        cfg = Config.fromfile(
            args.config, import_custom_modules=False, trust=args.trust_config
        )
    cfg.merge_from_dict(args.cfg_options or {})
    if not is_engine_style(cfg):
        give_runner(cfg)
        return cfg
    from devrun.interop.mmengine.translate import translated

    return translated(cfg, split)


@contextmanager
def trusted(args: argparse.Namespace) -> Iterator[None]:
    """Within, configs may name what the flags allow."""
    with (
        granted(args.factories, everything=args.trust_config),
        downloads_allowed(vars(args).get("allow_download", False)),
    ):
        yield


def import_modules(args: argparse.Namespace, cfg: Any) -> None:
    """What `--import` and then the config's `custom_imports` list."""
    import_named(args.imports, args.config)
    folders = search_folders(args.config) if args.trust_config else ()
    import_custom(cfg.copy(), folders)  # the command line may have changed the list


def overrides(args: argparse.Namespace, cfg: Any) -> dict[str, Any]:
    """Config keys that the flags set, so that the written config tells all.

    Raises:
        ConfigError: flags that contradict each other.
    """
    if args.resume_from is not None and args.load_from is not None:
        raise ConfigError(
            "--resume-from and --load-from clash: the first goes on with a run, the "
            "second starts one from weights; give one of them"
        )
    if args.resume_from is not None and args.overwrite:
        raise ConfigError(
            "--resume-from and --overwrite clash: one goes on with the run that is in "
            "work_dir, the other sets it aside; give one of them"
        )
    if args.allow_pickle not in (None, args.resume_from, args.load_from):
        raise ConfigError(
            f"--allow-pickle {args.allow_pickle} is not the file that is loaded; name "
            "the one of --resume-from or --load-from"
        )
    names = (
        "work_dir", "resume_from", "load_from", "revise_keys", "seed", "launcher",
        "performance",
    )  # fmt: skip
    changes = {n: getattr(args, n) for n in names if getattr(args, n) is not None}
    if args.allow_changes:
        changes["allow_changes"] = True
    if args.deterministic:
        changes["deterministic"] = True
    if getattr(args, "auto_scale_lr", False):
        changes["auto_scale_lr.enable"] = True
    device = device_entry(args, cfg.get("device", "auto"))
    if device != cfg.get("device"):
        # it holds what stays of the configured device, and takes its place
        whole = isinstance(device, Mapping)
        changes["device"] = {**device, DELETE: True} if whole else device
    return changes


def device_entry(args: argparse.Namespace, configured: Any) -> Any:
    """The config's `device` after the flags: a name, or `{type, options...}`.

    Options from the config stay as long as the flags do not change the type; without
    a type they are those of any device.
    """
    given = (
        dict(configured) if isinstance(configured, Mapping) else {"type": configured}
    )
    implied = _implied(args)
    asked = args.device
    for flag, name, _ in implied:
        if asked not in (None, name, _type(name)):
            raise ConfigError(
                f"--device {asked} and {flag} clash: {flag} means --device {name}; "
                "give one of them"
            )
    if len(implied) > 1:
        raise ConfigError(
            f"{implied[0][0]} and {implied[1][0]} clash; give one of them"
        )
    if implied:
        asked = implied[0][1]
    if asked is not None:
        same = _type(asked) == _type(str(given.get("type", asked)))
        given = {**(given if same else {}), "type": asked}
        for flag, _, options in implied:
            for key, value in options.items():
                if given.setdefault(key, value) != value:
                    raise ConfigError(
                        f"{flag} and device.{key} of the config, {given[key]!r}, "
                        "clash; give one of them"
                    )
    if args.emulate:
        given["emulate"] = True
    return given["type"] if given.keys() == {"type"} else given


def left_out(args: argparse.Namespace, configured: Any) -> str | None:
    """What to say where the flags name another device than `configured`, whose options
    then mean nothing; None where all of them stay."""
    if not isinstance(configured, Mapping):
        return None
    entry = device_entry(args, configured)
    kept = entry if isinstance(entry, Mapping) else {"type": entry}
    lost = [key for key in configured if key not in kept]
    if not lost:
        return None
    return (
        f"on device {kept['type']}, options of device {configured['type']} are left "
        f"out: {', '.join(map(str, lost))}; in a section without type they are for any "
        "device"
    )


def _implied(args: argparse.Namespace) -> list[tuple[str, str, dict[str, Any]]]:
    """(flag, device it means, options it sets) for each flag that names a device."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    if args.ipu_replicas is not None:
        flag = f"--ipu-replicas {args.ipu_replicas}"
        found.append((flag, "ipu", {"replicas": args.ipu_replicas}))
    if args.gpu_id is not None:
        found.append((f"--gpu-id {args.gpu_id}", f"cuda:{args.gpu_id}", {}))
    if args.gpu_ids is not None:
        found.append((f"--gpu-ids {args.gpu_ids[0]}", f"cuda:{args.gpu_ids[0]}", {}))
    if args.gpus is not None:
        found.append((f"--gpus {args.gpus}", "cuda", {}))
    return found


def _type(name: str) -> str:
    return name.split(":")[0]


def _word(text: str) -> str:
    if not text.strip():  # `--load-from $WEIGHTS` must not start without them
        raise argparse.ArgumentTypeError("is empty; was a variable not set?")
    return text


def _revision(text: str) -> list[str]:
    pattern, equals, replacement = text.rpartition("=")  # one may be in the pattern
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not PATTERN=REPLACEMENT")
    return [pattern, replacement]
