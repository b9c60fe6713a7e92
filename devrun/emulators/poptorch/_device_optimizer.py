"""The update that the device makes: torch's rules on the device's own weights."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import torch

from poptorch._errors import Error
from poptorch._optimizer_attributes import hyperparameters
from poptorch._update_rules import AutomaticScaling, lamb_update, tf_rmsprop_update

SUPPORTED = ("SGD", "AdamW", "Adam", "RMSprop", "LAMB")
_NAMES = {
    # PopART's names for the state tensors of each optimizer
    "SGD": {"momentum_buffer": "Accl1___"},
    "Adam": {"exp_avg": "Accl1___", "exp_avg_sq": "Accl2___", "step": "Step___"},
    "RMSprop": {
        "square_avg": "Accl1___",
        "momentum_buffer": "Accl2___",
        "grad_avg": "Accl3___",
        "step": "Step___",
    },
}


def family(optimizer: Any) -> str:
    """Which of the supported rules an optimizer stands for; `AssertionError` if none.

    AdamW is asked for before Adam, of which it is a subclass in newer torch.
    """
    kinds = {kind.__name__ for kind in type(optimizer).__mro__}
    if not isinstance(optimizer, torch.optim.Optimizer):
        kinds = set()
    for name in SUPPORTED:
        if name in kinds:
            return name
    raise AssertionError(
        f"Unsupported optimizer type {type(optimizer).__name__}. Types supported: "
        f"{', '.join(SUPPORTED)}"
    )


def _is_half(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float16


class DeviceOptimizer:
    """Weights by parameter group, the state of each, and PopART's names for it."""

    def __init__(
        self,
        optimizer: Any,
        weights: dict[int, tuple[str, list[torch.Tensor]]],
        automatic_scaling: bool = False,
    ) -> None:
        self.scaling = AutomaticScaling(automatic_scaling)
        self.family = family(optimizer)
        self.names: dict[int, str] = {}
        self.written: dict[str, torch.Tensor] = {}
        """Hyper-parameters that were loaded; the next change of any replaces them."""
        self.rows: list[tuple[torch.Tensor, int]] = []
        for index, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                name, found = weights.get(id(parameter), ("", []))
                for weight in found:
                    if weight.requires_grad:
                        self.names[id(weight)] = name
                        self.rows.append((weight, index))
        self._take(optimizer)
        self.keeps_momentum = bool(self.groups[0].get("momentum"))
        if self.family == "SGD":
            marked = getattr(optimizer, "variable_attrs", None)
            if marked is not None and not marked.isConstant("momentum"):
                self.keeps_momentum = True
        self._wide = {id(w): w.detach().float() for w in self.weights if _is_half(w)}
        """Weights in half precision as their update sees them, in float32."""
        self.own = self.family == "LAMB" or self.groups[0]["use_tf_variant"]
        self.state: dict[torch.Tensor, dict[str, Any]] = {}
        self.inner: torch.optim.Optimizer | None = None
        if not self.own and self.rows:
            self.inner = self._torch_optimizer()
            self.state = self.inner.state
        if self.family != "SGD":
            for weight in self.weights:
                self.state[self._seen(weight)] = self._fresh_state(self._seen(weight))

    def _torch_optimizer(self) -> torch.optim.Optimizer:
        """One group for each weight, so that each can have its own settings."""
        kind = getattr(torch.optim, self.family)
        inner: torch.optim.Optimizer = kind(
            # One plain loop on the CPU, whatever the user's object prefers.
            [{"params": [self._seen(weight)]} for weight, _ in self.rows],
            lr=0.0,
            foreach=False,
        )
        return inner

    def _fresh_state(self, weight: torch.Tensor) -> dict[str, Any]:
        """The state before the first update, as torch makes it at the first."""
        zeros = torch.zeros_like(weight, requires_grad=False)
        state: dict[str, Any] = {"step": torch.zeros(())}
        if self.family != "RMSprop":
            return {**state, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        first = self.groups[0]
        state["square_avg"] = zeros + 1 if first["use_tf_variant"] else zeros
        if first.get("momentum") or first["use_tf_variant"]:
            state["momentum_buffer"] = zeros.clone()
        if first.get("centered"):
            state["grad_avg"] = zeros.clone()
        return state

    def _seen(self, weight: torch.Tensor) -> torch.Tensor:
        """The tensor that stands for a weight in its update and in `state`."""
        return self._wide.get(id(weight), weight)

    @property
    def weights(self) -> list[torch.Tensor]:
        """Everything that is trained."""
        return [weight for weight, _ in self.rows]

    def loss_scaling(self) -> float:
        """By how much the user has the loss multiplied before the backward pass."""
        return float(self.groups[0]["loss_scaling"])

    def loss_scale(self) -> float:
        """The same with what the device has found itself."""
        return self.loss_scaling() * self.scaling.factor

    def update(self, optimizer: Any) -> None:
        """Take over the hyper-parameters of a host optimizer of the same kind."""
        kind = family(optimizer)
        if kind != self.family:
            raise Error(
                f"The optimizer can't change from {self.family} to {kind} after "
                "compilation"
            )
        self._take(optimizer)
        self.written = {}

    def _take(self, optimizer: Any) -> None:
        self.groups = hyperparameters(optimizer)
        self.held = [self._device_values(group) for group in self.groups]
        """What the device has of each group, by PopART's names."""

    def _device_values(self, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """In float32, as a saved state has them: a resume goes on with the same."""
        lr, decay = float(group["lr"]), float(group.get("weight_decay") or 0.0)
        found = {"learningRate": lr, "weightDecay": decay}
        if self.family == "SGD":
            rate = lr * (1 - float(group.get("dampening") or 0.0))
            found["scaledLearningRate0"] = rate / self.loss_scaling()
            found["weightDecayScaleFactor0"] = 1 - rate * decay
        return {kind: torch.tensor(value) for kind, value in found.items()}

    def _settings(self, weight: torch.Tensor, index: int) -> dict[str, Any]:
        """The values for one weight: the device's, or those that were loaded."""
        group, name = self.groups[index], self.names[id(weight)]
        values = {
            kind: float(self.written.get(f"{kind}___specific___{name}", value))
            for kind, value in self.held[index].items()
        }
        lr, decay = values["learningRate"], values["weightDecay"]
        keep = 1 - float(group.get("dampening") or 0.0)
        if self.family == "SGD" and keep:
            lr = values["scaledLearningRate0"] * self.loss_scaling() / keep
            if lr:
                decay = (1 - values["weightDecayScaleFactor0"]) / (lr * keep)
        return {**group, "lr": lr, "weight_decay": decay}

    def step(self) -> None:
        """Clip and update once, from the gradients in `.grad`."""
        for weight in self.weights:
            seen = self._seen(weight)
            if seen is not weight:
                seen.copy_(weight)
                seen.grad = None if weight.grad is None else weight.grad.float()
        self._step_seen([(self._seen(weight), index) for weight, index in self.rows])
        for weight in self.weights:
            seen = self._seen(weight)
            if seen is not weight:
                weight.copy_(seen)
                seen.grad = None

    def _step_seen(self, rows: list[tuple[torch.Tensor, int]]) -> None:
        limit = self.groups[0]["max_grad_norm"]
        graded = [w for w, _ in rows if w.grad is not None]
        if limit is not None and limit != float("inf") and graded:
            torch.nn.utils.clip_grad_norm_(graded, float(limit))
        settings = [self._settings(weight, index) for weight, index in self.rows]
        if self.inner is not None:
            for mine, group in zip(self.inner.param_groups, settings):
                mine.update({k: group[k] for k in mine.keys() & group.keys()})
                self._complete(mine["params"][0], group)
            self.inner.step()
            return
        rule = lamb_update if self.family == "LAMB" else tf_rmsprop_update
        for (weight, _), group in zip(rows, settings):
            if weight.grad is not None:
                rule(weight, weight.grad, self.state[weight], group)

    # -- state by PopART's names -------------------------------------------------------

    def _complete(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        """State of a momentum that is not zero any more, or could become so later."""
        state = self.state[weight]
        if self.family == "RMSprop" and group["momentum"]:
            zeros = torch.zeros_like(weight, requires_grad=False)
            state.setdefault("momentum_buffer", zeros)
        elif self.family == "SGD" and self.keeps_momentum and not group["momentum"]:
            if weight.grad is not None:
                state["momentum_buffer"] = weight.grad.detach().clone()

    def read_state(self) -> dict[str, torch.Tensor]:
        """Copies of all state tensors; those of groups of replicas on top of others."""
        names = _NAMES.get(self.family, _NAMES["Adam"])
        rows: dict[str, list[torch.Tensor]] = defaultdict(list)
        for weight in self.weights:
            values = self.state.get(self._seen(weight), {})
            if not values and self.keeps_momentum and self.family == "SGD":
                zeros = torch.zeros_like(self._seen(weight), requires_grad=False)
                values = {"momentum_buffer": zeros}
            for key, value in values.items():
                if key in names and isinstance(value, torch.Tensor):
                    copy = value.detach().clone()
                    rows[names[key] + self.names[id(weight)]].append(copy)
        found = {k: torch.stack(v) if len(v) > 1 else v[0] for k, v in rows.items()}
        if self.scaling.enabled:
            found["lossScaleUpdateFactor"] = torch.tensor(self.scaling.factor)
        return found

    def write_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take over state tensors; names that are unknown here are ignored."""
        names = _NAMES.get(self.family, _NAMES["Adam"])
        if "lossScaleUpdateFactor" in state:
            self.scaling.factor = float(state["lossScaleUpdateFactor"])
        copies = Counter(self.names.values())
        seen: Counter[str] = Counter()
        for weight in self.weights:
            name = self.names[id(weight)]
            for key, prefix in names.items():
                if prefix + name in state:
                    value = state[prefix + name].detach()
                    value = value[seen[name]] if copies[name] > 1 else value
                    kept = self.state.setdefault(self._seen(weight), {})
                    kept[key] = value.float() if _is_half(value) else value.clone()
            seen[name] += 1

    def read_params(self) -> dict[str, torch.Tensor]:
        """The hyper-parameters as the device holds them, one per weight."""
        found = {
            f"{kind}___specific___{self.names[id(weight)]}": value.clone()
            for weight, index in self.rows
            for kind, value in self.held[index].items()
        }
        found["lossScaling_FLOAT"] = torch.tensor(self.loss_scaling())
        return {**found, **self.written}

    def write_params(self, params: dict[str, torch.Tensor]) -> None:
        """Take over loaded hyper-parameters; what is not named stays."""
        self.written = {**self.written, **params}
