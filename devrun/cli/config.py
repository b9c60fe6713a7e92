"""`devrun config CONFIG`: the config with its bases and changes, and where each value
is from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from devrun.cli.console import say
from devrun.cli.exits import Session
from devrun.cli.flags import add_config_flags, read_config
from devrun.cli.parser import switch
from devrun.config import check_config
from devrun.config.dump import to_plain
from devrun.config.loader import extension
from devrun.config.tree import children, origin_of
from devrun.place import Origin, dotted
from devrun.text import aligned


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="a .yaml, .json or .py file")
    switch(parser, "--plain", "as a config file, without where values are from")
    out = "write that file: a .py, .yaml or .json, such as of one of MMEngine's"
    parser.add_argument("-o", "--out", metavar="FILE", help=out)
    add_config_flags(parser)


def run(args: argparse.Namespace, session: Session) -> int:
    """Print or write it as `devrun train` would use it."""
    if args.out is not None:
        extension(args.out)
    cfg = read_config(args)
    check_config(cfg)
    if args.out is not None:
        cfg.dump(args.out)
        say(f"wrote {args.out}")
        return 0
    if args.plain:
        say((cfg.dump() or "").rstrip("\n"))
        return 0
    tree = cfg._cfg_dict
    leaves = _walk(tree, to_plain(tree), (), tree._meta_.origin)
    rows = [[f"{key}={value}", f"# {origin}"] for key, value, origin in leaves]
    say("\n".join(aligned(rows)))
    return 0


def _walk(
    node: Any, shown: Any, path: tuple[Any, ...], origin: Origin | None
) -> Iterator[tuple[str, str, Origin | None]]:
    """Dotted key, value and origin of all that is no dict or list of dicts."""
    inner = list(children(node))
    if inner and (isinstance(node, dict) or isinstance(inner[0][1], dict)):
        for key, value in inner:
            here = origin_of(node, key) or origin
            yield from _walk(value, shown[key], (*path, key), here)
    else:
        yield (
            dotted(path),
            shown if isinstance(shown, str) else json.dumps(shown),
            origin,
        )
