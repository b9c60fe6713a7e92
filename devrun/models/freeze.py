"""`freeze`: parameters that are not trained, by their names."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from devrun.errors import ConfigError
from devrun.models.names import matching


def freeze(model: nn.Module, patterns: Any) -> list[nn.Module]:
    """Take the parameters that `patterns` match out of training; the norms in it.

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
    return [
        module
        for name, module in modules.items()
        if isinstance(module, _NormBase) and any(matches(name) for matches in patterns)
    ]


def frozen_norms(model: nn.Module) -> list[nn.Module]:
    """Batch and instance norms whose own parameters are all frozen.

    They and those in frozen modules must stay in evaluation mode, so that their
    statistics stay as they are too.
    """
    return [
        module
        for module in model.modules()
        if isinstance(module, _NormBase)
        and any(True for _ in module.parameters(recurse=False))
        and not any(p.requires_grad for p in module.parameters(recurse=False))
    ]
