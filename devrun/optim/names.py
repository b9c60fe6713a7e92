"""Parameter names in the order an optimizer keeps its parameters."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from devrun.errors import ConfigError


def param_names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """The model's name of each parameter, group by group.

    The state of an optimizer counts parameters by position; with these names it can
    be stored so that it survives modules registered in another order. A shared
    parameter has its first name.

    Raises:
        ConfigError: the optimizer holds a parameter that the model does not have.
    """
    known = {id(param): name for name, param in model.named_parameters()}
    names = []
    for index, group in enumerate(optimizer.param_groups):
        try:
            names.append([known[id(param)] for param in group["params"]])
        except KeyError:
            strange = next(p for p in group["params"] if id(p) not in known)
            raise ConfigError(
                f"group {index} of {type(optimizer).__name__} has a parameter of shape "
                f"{tuple(strange.shape)} that is not in {type(model).__name__}: build "
                f"the optimizer from this model, after any replacement of its layers"
            ) from None
    return names
