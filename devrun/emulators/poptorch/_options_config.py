"""Options from JSON and from a file of setter calls.

A line of the file is parsed, never executed: names, literals, members of `poptorch`
and calls of them are all it may contain.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

from poptorch import enums


class ConfigFileError(Exception):
    """A line that is no setter call: file, line number and text."""


def apply_json(options: Any, text: str) -> None:
    """Call the setters that a JSON object names, with dots for sections.

    A list gives several arguments; `"Enum.Member"` stands for the member.
    """
    settings = json.loads(text)
    if not isinstance(settings, dict):
        raise ValueError("expected a JSON object of setter names and values")
    for name, value in settings.items():
        target = options
        for part in name.split("."):
            target = getattr(target, part)
        values = value if isinstance(value, list) else [value]
        target(*(_enum_member(v) for v in values))


def _enum_member(value: Any) -> Any:
    if not isinstance(value, str) or value.count(".") != 1:
        return value
    kind, member = value.split(".")
    found = getattr(enums, kind, None)
    if isinstance(found, type) and member in getattr(found, "__members__", {}):
        return found[member]  # type: ignore[index]
    return value


def apply_file(options: Any, path: str) -> None:
    """Call one setter per line of the file at `path`.

    Raises:
        ConfigFileError: A line that cannot be parsed or whose call fails.
    """
    file = Path(path)
    stripped = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    calls = [line for line in stripped if line and not line.startswith("#")]
    for number, line in enumerate(calls, 1):  # as the original counts: calls alone
        source = f"options.{line}"
        try:
            tree = ast.parse(source, mode="eval")
            _evaluate(tree.body, options)
        except SyntaxError as error:
            reason = _reason(error)
            raise ConfigFileError(
                f"SyntaxError at line {number} of {file.name}: {reason}\n> {source}"
            ) from error
        except (AttributeError, AssertionError, TypeError, ValueError) as error:
            raise ConfigFileError(
                f"{type(error).__name__} at line {number} of {file.name}: {error}\n"
                f"> {source}"
            ) from error


def _reason(error: SyntaxError) -> str:
    """One wording for a line that ends too early, which Python words by version."""
    text = str(error.msg)
    if "was never closed" in text or "unexpected EOF" in text:
        return "unexpected EOF while parsing"
    return text


def _evaluate(node: ast.expr, options: Any) -> Any:
    if isinstance(node, ast.Call):
        function = _evaluate(node.func, options)
        keywords = {k.arg: _evaluate(k.value, options) for k in node.keywords if k.arg}
        return function(*(_evaluate(a, options) for a in node.args), **keywords)
    if isinstance(node, ast.Attribute):
        return getattr(_evaluate(node.value, options), node.attr)
    if isinstance(node, ast.Name):
        if node.id == "options":
            return options
        if node.id == "poptorch":
            return sys.modules[__package__]
        if node.id == "torch":
            import torch

            return torch
        raise ValueError(f"unknown name {node.id}")
    return ast.literal_eval(node)
