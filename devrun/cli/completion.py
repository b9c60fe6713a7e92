"""Tab completion of the command line, by argcomplete, where that is installed."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from devrun.cli.parser import LineParser
from devrun.config.described import all_keys
from devrun.config.shipped import shipped_configs


def complete(commands: dict[str, str]) -> None:
    """Print what fits the words so far, and end the process."""
    import argcomplete
    from argcomplete.completers import FilesCompleter

    def configs(**how: Any) -> list[str]:
        return [*shipped_configs(), *FilesCompleter()(**how)]

    completers: dict[str, Any] = {
        "config": configs,
        "configs": configs,
        "cfg_options": lambda **how: [f"{key}=" for key, _ in all_keys()],
        "sweep": lambda **how: [f"{key}=" for key, _ in all_keys()],
        "word": lambda **how: _names(),
        "words": lambda **how: _names(),
    }
    parser = LineParser("devrun", "")
    under = parser.add_subparsers(parser_class=LineParser)
    for name, what in commands.items():
        command = under.add_parser(name, help=what, description=what)
        import_module(f"devrun.cli.{name}").add_arguments(command)
        for action in command._actions:
            if action.dest in completers:
                vars(action)["completer"] = completers[action.dest]
    argcomplete.autocomplete(parser, always_complete_options=False)


def _names() -> Iterable[str]:
    from devrun.cli.catalogue import KINDS, REGISTRIES, catalogue

    yield from KINDS
    for kind in (*REGISTRIES, "keys"):
        yield from (entry.name for entry in catalogue(kind))
