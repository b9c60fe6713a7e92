"""`performance: fast`: the switches of a device, each with its reason and its price.

An adapter lists them (`EagerAdapter.switches`), by the device and the model alone, so
that two runs of one seed decide alike. What the user set stays; what does not repeat
bit for bit is left out where the run has to be deterministic.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import nn

from devrun.devices.options import EagerOptions
from devrun.models.step_module import wrap_fp16_model
from devrun.parallel.strategy import optimizers_in
from devrun.step import UpdatePolicy
from devrun.text import joined

_WHOLE = ("fused", "compile", "channels_last")
_WORDS = {None: "unchanged", True: "on", False: "off"}

logger = logging.getLogger("devrun")


@dataclass(frozen=True)
class Switch:
    """One setting by the key that sets it alone."""

    key: str
    value: Any
    """What `fast` sets; None: nothing, for the reason in `why`."""
    why: str
    numerics: str | None = ""
    """How results change; empty: not at all. None: it is the user's choice."""
    repeats: bool = True
    """Whether the same seed gives the same bits each time."""

    def __str__(self) -> str:
        plain = self.value is None or isinstance(self.value, bool)
        shown = _WORDS[self.value] if plain else _shown(self.value)
        told = self.value is not None and self.numerics is not None
        price = f" [{self.numerics or 'the same bits'}]" if told else ""
        return f"{self.key}: {shown}: {self.why}{price}"


@dataclass(frozen=True)
class Plan:
    """What came of the switches: in words, and as settings."""

    rows: list[Switch]
    options: dict[str, Any] = field(default_factory=dict)
    """Of the device."""
    precision: str | None = None
    fused: bool = False

    def table(self, device: str) -> str:
        """A line for each switch, under the one that names the device."""
        return "\n  ".join([f"performance: fast on {device}", *map(str, self.rows)])


def plan(
    switches: Iterable[Switch],
    options: EagerOptions,
    policy: UpdatePolicy,
    optimizer: Any,
    *,
    divided: bool = False,
) -> Plan:
    """The switches, after what the user said already and after `deterministic`.

    Args:
        divided: weights are spread over processes, whose engine compiles nothing here
            and has updates of its own.
    """
    given = {f.name: getattr(options, f.name) for f in fields(options)}
    if not policy.precision_open:
        given["precision"] = policy.precision
    chosen = {group.get("fused") for group in _groups(optimizer)} - {None}
    given["fused"] = chosen.pop() if len(chosen) == 1 else None
    deterministic = options.deterministic
    rows = [_decided(switch, given, deterministic, divided) for switch in switches]
    settings = {
        row.key: row.value
        for row in rows
        if given.get(row.key) is None and row.value is not None
    }
    return Plan(
        rows,
        {key: value for key, value in settings.items() if hasattr(options, key)},
        settings.get("precision"),
        bool(settings.get("fused")),
    )


def _decided(
    switch: Switch, given: Mapping[str, Any], deterministic: bool, divided: bool
) -> Switch:
    value = given.get(switch.key)
    if value is not None:
        return replace(switch, value=value, why="as it was given", numerics=None)
    if switch.value is not None and deterministic and not switch.repeats:
        why = f"left out for deterministic, which it contradicts ({switch.why})"
        return replace(switch, value=None, why=why)
    if switch.value is not None and divided and switch.key in _WHOLE:
        return replace(switch, value=None, why="weights are divided over processes")
    return switch


def hasten(
    adapter: Any, model: Any, optimizer: Any, policy: UpdatePolicy, *, divided: bool
) -> UpdatePolicy:
    """Carry out the plan of an adapter, which is told; the policy from now on."""
    switches = adapter.switches(model.module, optimizer, policy)
    made = plan(switches, adapter.options, policy, optimizer, divided=divided)
    logger.info("%s", made.table(adapter.name))
    adapter.options = replace(adapter.options, **made.options)
    if made.fused:
        fuse(optimizer)
    adapter.precision = made.precision
    if made.precision is None:
        return policy
    wrap_fp16_model(model.module)
    return replace(policy, precision=made.precision)


def fused_switch(optimizer: Any, model: nn.Module, device: torch.device) -> Switch:
    """torch's update in one kernel, where its class has one for this device."""
    obstacle = _fused_obstacle(optimizer, model, device)
    if obstacle is not None:
        return Switch("fused", None, obstacle)
    why = "an update of all weights is one kernel"
    return Switch("fused", True, why, "last bits of an update")


def fuse(optimizer: Any) -> None:
    """Set what `fused=True` would have set when the optimizer was built."""
    for each in optimizers_in(optimizer):
        each.defaults["fused"] = True
        for group in each.param_groups:
            group["fused"] = True


def has_convolutions(model: nn.Module) -> bool:
    """Whether there are convolutions over images, and none over volumes, whose weights
    have no channels-last format of four dimensions."""
    images = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return images and all(param.dim() < 5 for param in model.parameters())


def _fused_obstacle(
    optimizer: Any, model: nn.Module, device: torch.device
) -> str | None:
    if optimizer is None:
        return "there is no optimizer"
    if any(getattr(module, "sparse", False) for module in model.modules()):
        return "an embedding has sparse gradients, which fused updates do not take"
    for each in optimizers_in(optimizer):
        kind = type(each)
        if (
            not kind.__module__.startswith("torch.optim.")
            or "fused" not in each.defaults
        ):
            return f"{kind.__name__} has no fused update in torch {torch.__version__}"
        for group in each.param_groups:
            if group.get("foreach") or group.get("differentiable"):
                return "foreach or differentiable was asked for"
            for dtype in {param.dtype for param in group["params"]}:
                if refused := _tried(kind, group, dtype, device):
                    return f"{kind.__name__} refused it: {refused}"
    return None


def _tried(
    kind: Any, group: Mapping[str, Any], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Why a fused update of one number of that type fails; None where it does not."""
    accepted = inspect.signature(kind).parameters.keys() & group.keys() - {"params"}
    given = {key: group[key] for key in accepted}
    probe = nn.Parameter(torch.zeros(1, dtype=dtype, device=device))
    probe.grad = torch.zeros_like(probe)
    try:
        kind([probe], **{**given, "foreach": None, "fused": True}).step()
    except (RuntimeError, TypeError, ValueError) as error:
        return joined(error)
    return None


def _groups(optimizer: Any) -> list[Mapping[str, Any]]:
    return [group for each in optimizers_in(optimizer) for group in each.param_groups]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {str(one).lower()}" for key, one in value.items())
    return str(value)
