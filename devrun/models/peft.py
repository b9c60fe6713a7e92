"""`peft`: adapters such as LoRA in a model whose own weights stay (Hu et al. 2021,
arXiv:2106.09685), by the package of that name."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from devrun.blame import cause_of
from devrun.construct import where
from devrun.errors import ConfigError
from devrun.python38 import unprefixed
from devrun.registry import Registry


def _config_class() -> type:
    from peft import PeftConfig

    kind: type = PeftConfig
    return kind


CONFIGS = Registry("adapter", expects=_config_class)


def adapt(model: nn.Module, cfg: Mapping[str, Any]) -> None:
    """Put the adapters that `cfg` describes into `model`, and freeze the rest.

    The model stays of its class. Weights of the model without adapters can be loaded
    into it still.

    Args:
        cfg: `type`, a config class of peft such as `LoraConfig`, and its arguments.

    Raises:
        ConfigError: no such class, peft refuses the arguments, or nothing has the names
            that `target_modules` gives.
    """
    named: Any = copy.copy(cfg)  # of its own class, which knows its file and line
    kind = cfg.get("type")
    if isinstance(kind, str) and "." not in kind:
        dict.__setitem__(named, "type", f"peft.{kind}")
    made = CONFIGS.build(named)
    from peft import inject_adapter_in_model

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inject_adapter_in_model(made, model)
    except Exception as error:
        raise ConfigError(
            f"peft cannot adapt {type(model).__name__}: {cause_of(error)}",
            place=where(cfg),
        ) from error
    for module, places in _wrappers(model):
        module.register_load_state_dict_pre_hook(_Renamed(places))


def merge_adapters(model: nn.Module) -> None:
    """Add what the adapters of `adapt` learnt to the weights, and take them out.

    Raises:
        ConfigError: adapters of a kind that cannot be merged.
    """
    wrapped = {id(module): places for module, places in _wrappers(model)}
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if id(module) not in wrapped:
                continue
            inner: Any = module
            if wrapped[id(module)][0] == _BASE:
                try:
                    inner.merge()
                except Exception as error:
                    raise ConfigError(
                        f"the adapter {name} cannot be merged: {cause_of(error)}"
                    ) from error
                inner = inner.get_base_layer()
            else:
                inner = inner.modules_to_save["default"]
            parent.register_module(name, inner)


_BASE = "base_layer."
_SAVED = ("original_module.", "modules_to_save.default.")


def _wrappers(model: nn.Module) -> Iterator[tuple[nn.Module, tuple[str, ...]]]:
    """Each module that peft put around one of the model's, and where in it that is."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            yield module, (_BASE,)
        elif isinstance(module, ModulesToSaveWrapper):
            yield module, _SAVED


class _Renamed:
    """Before weights are loaded: those of the model without adapters get its names."""

    def __init__(self, places: tuple[str, ...]) -> None:
        self.places = places

    def __call__(
        self, module: nn.Module, state: dict[str, Any], prefix: str, *_: Any
    ) -> None:
        own = {name for name, _ in module.named_children()}
        own |= {name for name, _ in module.named_parameters(recurse=False)}
        for key in [key for key in state if key.startswith(prefix)]:
            rest = unprefixed(key, prefix)
            if rest.partition(".")[0] not in own:
                value = state.pop(key)
                for place in self.places:
                    state[f"{prefix}{place}{rest}"] = value
