"""The flags of `train`, and what they change in the config."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from devrun.cli.parser import index, limit, positive, switch
from devrun.cli.several import number_or_auto
from devrun.config import Config, DictAction
from devrun.config.engine import is_engine_style
from devrun.config.imports import import_custom, import_named, search_folders
from devrun.config.loader import DELETE
from devrun.config.schema import give_runner
from devrun.config.shipped import config_path
from devrun.errors import ConfigError
from devrun.launchers import LAUNCHERS
from devrun.network import downloads_allowed
from devrun.trust import granted

_OF_REPLICAS = "ipu"
"""The device that `--ipu-replicas` means."""


def add_train_flags(parser: argparse.ArgumentParser) -> None:
    """Every flag of `devrun train`, in the groups that its help shows."""
    parser.add_argument("config", metavar="CONFIG", help="a .yaml, .json or .py file")
    add_device_flags(parser.add_argument_group("device"))
    _sweep_flags(parser.add_argument_group("several runs"))
    _state_flags(parser.add_argument_group("what is kept and continued"))
    _run_flags(parser.add_argument_group("run"))


def add_device_flags(group: argparse._ActionsContainer) -> None:
    """The flags that say where to run; `shared_overrides` reads them."""
    one = group.add_mutually_exclusive_group().add_argument
    one("--device", type=_word, metavar="D", help="cpu, cuda:1, auto (devrun devices)")
    gpu = "MMCV's flag: --device cuda:N"
    one("--gpu-id", type=_gpu, dest="device", metavar="N", help=gpu)
    add = group.add_argument
    add("--ipu-replicas", type=positive, metavar="N", help="ipu with N replicas")
    switch(group, "--emulate", "run on the device's emulator")
    many = "start N processes, each with a device; auto: as many as are here"
    add("--num-devices", type=number_or_auto, metavar="N|auto", help=many)
    add("--launcher", choices=LAUNCHERS, help="who started the processes (none)")
    rank = ("--local_rank", "--local-rank")
    add(*rank, type=index, metavar="N", help="set by older launchers")


def _sweep_flags(group: argparse._ActionsContainer) -> None:
    form: dict[str, Any] = {"nargs": "+", "metavar": "KEY=V1,V2"}
    each = "a run for each combination of these values"
    group.add_argument("--sweep", action=DictAction, **form, help=each)
    add = group.add_argument
    add("--jobs", type=positive, default=1, metavar="N", help="so many at a time (1)")


def _state_flags(group: argparse._ActionsContainer) -> None:
    add = group.add_argument
    add("--work-dir", type=_word, metavar="DIR", help="work_dirs/<name of the config>")
    newest = "go on; auto: the newest good one"
    add("--resume-from", type=_word, metavar="PATH|auto", help=newest)
    auto: dict[str, Any] = {"action": "store_const", "const": "auto"}
    same = "MMCV's flag: --resume-from auto"
    add("--auto-resume", dest="resume_from", **auto, help=same)
    add("--load-from", type=_word, metavar="PATH", help="start with these weights")
    add_weights_flags(group)
    switch(group, "--allow-changes", "go on with a changed config")
    switch(group, "--overwrite", "set the run in work_dir aside")


def add_weights_flags(group: argparse._ActionsContainer) -> None:
    """The flags that say how weights are loaded, and from where."""
    add = group.add_argument
    renamed = "rename keys of the weights: '^backbone[.]='; the last = separates"
    form = "PATTERN=REPLACEMENT"
    add("--revise-keys", action="append", type=_revision, metavar=form, help=renamed)
    add("--allow-pickle", metavar="FILE", help="run the code that this old .pth names")
    switch(group, "--allow-download", "of weights and of what the config builds")


def _run_flags(group: argparse._ActionsContainer) -> None:
    add = group.add_argument
    switch(group, "--no-validate", "do not evaluate while training")
    switch(group, "--no-sanity", "do not try two batches of the evaluation first")
    add("--seed", type=index, metavar="N", help="of data order and random streams")
    switch(group, "--deterministic", "only deterministic algorithms")
    fast = "the switches that make this device fast (--dry-run lists them)"
    add("--performance", choices=("fast",), metavar="fast", help=fast)
    scaled = "lr times the samples of an update / auto_scale_lr.base_batch_size"
    switch(group, "--auto-scale-lr", scaled)
    dry: dict[str, Any] = {
        "action": "store_true",
        "help": "two iterations of each phase, no files",
    }
    add("--dry-run", "--fast-dev-run", **dry)
    part: dict[str, Any] = {"type": limit, "metavar": "N|FRACTION"}
    add("--limit-train", **part, help="batches of an epoch, such as 10 or 0.1")
    add("--limit-val", **part, help="batches of an evaluation")
    add("--overfit", **part, help="both limits, and train in the order of the data")
    switch(group, "--detect-anomaly", "name the operation that made a NaN gradient")
    switch(group, "--summary", "list the layers of the model and their parameters")
    add_progress_flag(group)
    add_config_flags(group)


def add_config_flags(group: argparse._ActionsContainer) -> None:
    """The flags that change a config, and say what it may import and call."""
    changes = "change the config: data.samples_per_gpu=8 model.depth=18"
    form: dict[str, Any] = {"nargs": "+", "metavar": "KEY=VALUE"}
    group.add_argument("--cfg-options", action=DictAction, **form, help=changes)
    add_trust_flags(group)


def add_progress_flag(group: argparse._ActionsContainer) -> None:
    """`args.progress`: False for no bar, None where the terminal decides."""
    off: dict[str, Any] = {"action": "store_false", "default": None}
    group.add_argument("--no-progress", dest="progress", **off, help="no progress bar")


def add_import_flag(group: argparse._ActionsContainer) -> None:
    """Modules of the user's that register models, hooks or devices."""
    form = _repeated("MODULE")
    group.add_argument("--import", dest="imports", **form, help="a module of yours")


def add_trust_flags(group: argparse._ActionsContainer) -> None:
    """The flags that say what a config may import and call; see `trusted`."""
    add_import_flag(group)
    own = "let the config name this function or class"
    form = _repeated("PATH")
    group.add_argument("--allow-factory", dest="factories", **form, help=own)
    runs = "let the config run code: a .py as Python, any type, modules beside it"
    switch(group, "--trust-config", runs)
    names = "`from mmcv.runner import ...` in modules of yours gives devrun's names"
    switch(group, "--mmcv", names)


def read_config(args: argparse.Namespace, split: str = "val") -> Config:
    """The config that `args` names, with `--cfg-options`, in devrun's sections.

    Of an MMEngine-style one, `--cfg-options` has the keys of that style.

    Args:
        split: whose evaluator an MMEngine-style config is read for.
    """
    args.config = config_path(args.config)
    cfg = Config.fromfile(
        args.config, import_custom_modules=False, trust=args.trust_config
    )
    cfg.merge_from_dict(args.cfg_options or {})
    if not is_engine_style(cfg):
        give_runner(cfg)
        return cfg
    from devrun.interop import read

    made: Config = read(cfg, split)
    return made


@contextmanager
def trusted(args: argparse.Namespace, cfg: Any = None) -> Iterator[None]:
    """Within, configs may name what the flags allow; the modules of `cfg` are here."""
    downloads = downloads_allowed(vars(args).get("allow_download", False))
    with granted(args.factories, everything=args.trust_config), downloads:
        if cfg is not None:
            import_modules(args, cfg)
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
    names = ("work_dir", "resume_from", "load_from", "seed", "performance")
    changes = {n: getattr(args, n) for n in names if getattr(args, n) is not None}
    if args.allow_changes:
        changes["allow_changes"] = True
    if args.deterministic:
        changes["deterministic"] = True
    for split in ("train", "val"):
        part = getattr(args, f"limit_{split}") or args.overfit
        if part is not None:
            changes[f"runner.limit_{split}"] = part
    if args.overfit is not None:
        changes["data.train_dataloader.shuffle"] = False
    if args.auto_scale_lr:
        changes["auto_scale_lr.enable"] = True
    return {**changes, **shared_overrides(args, cfg)}


def shared_overrides(args: argparse.Namespace, cfg: Any) -> dict[str, Any]:
    """The same for the flags that `devrun test` has too."""
    names = ("revise_keys", "launcher")
    changes = {n: getattr(args, n) for n in names if getattr(args, n) is not None}
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
    asked, replicas = args.device, args.ipu_replicas
    if replicas is not None:
        if asked not in (None, _OF_REPLICAS):
            raise ConfigError(
                f"--device {asked} and --ipu-replicas {replicas} clash: the second "
                f"means --device {_OF_REPLICAS}; give one of them"
            )
        asked = _OF_REPLICAS
    if asked is not None:
        same = _type(asked) == _type(str(given.get("type", asked)))
        given = {**(given if same else {}), "type": asked}
    if replicas is not None and given.setdefault("replicas", replicas) != replicas:
        raise ConfigError(
            f"--ipu-replicas {replicas} and device.replicas of the config, "
            f"{given['replicas']!r}, clash; give one of them"
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


def _type(name: str) -> str:
    return name.split(":")[0]


def _gpu(text: str) -> str:
    return f"cuda:{index(text)}"


def _repeated(metavar: str) -> dict[str, Any]:
    """How a flag is added that may come several times."""
    return {"action": "append", "default": [], "type": _word, "metavar": metavar}


def _word(text: str) -> str:
    if not text.strip():  # `--load-from $WEIGHTS` must not start without them
        raise argparse.ArgumentTypeError("is empty; was a variable not set?")
    return text


def _revision(text: str) -> list[str]:
    pattern, equals, replacement = text.rpartition("=")  # one may be in the pattern
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not PATTERN=REPLACEMENT")
    return [pattern, replacement]
