"""The blocks that a deep model is a stack of, found by how they are numbered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

_STAGE = 0.75
"""Of the parameters of its members: what makes of numbered parts stages of blocks."""


def blocks_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """(name, block) of the model's stack, in the order of its modules; may be empty.

    Blocks are modules of one class, made of other modules, which a Sequential or
    ModuleList numbers (`blocks.3`, `encoder.layer.3`, `layer2.0`): those with the most
    parameters together. Where these are stages, which again have most of their
    parameters in more numbered modules of one class, it is those.
    """
    found = _largest([("", model)])
    while found:
        inner = _largest(found)
        few = _size(inner) <= _STAGE * _size(found)
        if len(inner) <= len(found) or few:
            break
        found = inner
    return found if len(found) > 1 else []


def _largest(roots: Iterable[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Numbered modules below `roots` of the class that has the most parameters."""
    kinds: dict[type, list[tuple[str, nn.Module]]] = {}
    for root_name, root in roots:
        for name, module in _numbered(root, root_name):
            kinds.setdefault(type(module), []).append((name, module))
    return max(kinds.values(), key=_size, default=[])


def _numbered(root: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, parent in root.named_modules(prefix=prefix):
        if isinstance(parent, (nn.Sequential, nn.ModuleList)):
            for number, module in parent.named_children():
                composed = next(module.children(), None) is not None
                if number.isdecimal() and composed and _size([(number, module)]):
                    yield f"{name}.{number}".lstrip("."), module


def _size(modules: list[tuple[str, nn.Module]]) -> int:
    unique = {id(p): p.numel() for _, module in modules for p in module.parameters()}
    return sum(unique.values())
