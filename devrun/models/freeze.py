"""`freeze`: parameters that are not trained, by their names."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from devrun.errors import ConfigError
from devrun.models.names import matching

__all__ = ["freeze"]


def freeze(model: nn.Module, patterns: Any) -> list[nn.Module]:
    """Take the parameters that `patterns` match out of training.

    Returns:
        The batch and instance norms among what is frozen: they must stay in evaluation
        mode, so that their statistics stay as they are too.

    Raises:
        ConfigError: a pattern matches nothing, or nothing is left to train.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    modules = {name: module for name, module in model.named_modules() if name}
    patterns = matching("freeze", patterns, [*parameters, *modules]).values()
    for name, parameter in parameters.items():
        if any(matches(name) for matches in patterns):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError.of(
            "freeze", f"leaves no parameter of {type(model).__name__} to train"
        )
    norms = {n: m for n, m in modules.items() if isinstance(m, _NormBase)}
    return [
        module
        for name, module in norms.items()
        if any(matches(name) for matches in patterns) or _is_frozen(module)
    ]


def _is_frozen(module: nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)
