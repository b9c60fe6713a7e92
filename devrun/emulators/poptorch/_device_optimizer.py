"""The update that the device makes: torch's rules on the device's own weights."""

from __future__ import annotations

from typing import Any

import torch

from poptorch._optimizer_attributes import hyperparameters
from poptorch.poptorch_core import Error

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


@torch.no_grad()
def lamb_update(
    weight: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: Any
) -> None:
    """One LAMB update of one weight (You et al., 2020, algorithm 2)."""
    grad = grad.float()
    if not state:
        state["step"] = torch.zeros(())
        state["exp_avg"] = torch.zeros_like(weight, dtype=torch.float32)
        state["exp_avg_sq"] = torch.zeros_like(weight, dtype=torch.float32)
    beta1, beta2 = group["betas"]
    state["step"] += 1
    state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
    state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    mean, square = state["exp_avg"], state["exp_avg_sq"]
    if group["bias_correction"]:
        step = float(state["step"])
        mean = mean / (1 - beta1**step)
        square = square / (1 - beta2**step)
    update = mean / (square.sqrt() + group["eps"]) + group["weight_decay"] * weight
    norm = weight.float().norm().clamp(max=group["max_weight_norm"])
    change = update.norm()
    ratio = norm / change if norm > 0 and change > 0 else torch.ones(())
    weight.sub_((group["lr"] * ratio * update).to(weight.dtype))


@torch.no_grad()
def tf_rmsprop_update(
    weight: torch.Tensor, grad: torch.Tensor, state: dict[str, Any], group: Any
) -> None:
    """TensorFlow's RMSprop: squares begin at one, eps below the root, the rate inside
    the momentum."""
    if not state:
        state["square_avg"] = torch.ones_like(weight)
        state["momentum_buffer"] = torch.zeros_like(weight)
        if group["centered"]:
            state["grad_avg"] = torch.zeros_like(weight)
    if group["weight_decay"]:
        grad = grad + group["weight_decay"] * weight
    keep = group["alpha"]
    square = state["square_avg"]
    square.mul_(keep).addcmul_(grad, grad, value=1 - keep)
    spread = square
    if group["centered"]:
        state["grad_avg"].mul_(keep).add_(grad, alpha=1 - keep)
        spread = square - state["grad_avg"] ** 2
    step = group["lr"] * grad / (spread + group["eps"]).sqrt()
    if group["momentum"]:
        state["momentum_buffer"].mul_(group["momentum"]).add_(step)
        step = state["momentum_buffer"]
    weight.sub_(step)


class DeviceOptimizer:
    """Weights by parameter group, the state of each, and PopART's names for it."""

    def __init__(self, optimizer: Any, weights: dict[int, tuple[str, torch.Tensor]]):
        self.family = family(optimizer)
        self.names: dict[int, str] = {}
        groups = []
        for group in optimizer.param_groups:
            found = [weights[id(p)] for p in group["params"] if id(p) in weights]
            trained = [(n, t) for n, t in found if t.requires_grad]
            self.names.update({id(t): n for n, t in trained})
            rest = {k: v for k, v in group.items() if k != "params"}
            groups.append({**rest, "params": [t for _, t in trained]})
        self.groups = groups
        self.extras = {
            name: getattr(optimizer, name)
            for name in ("loss_scaling", "max_grad_norm", "accum_type")
            if isinstance(getattr(optimizer, name, None), (int, float, torch.dtype))
        }
        self.own = self.family == "LAMB" or bool(groups[0].get("use_tf_variant"))
        self.state: dict[torch.Tensor, dict[str, Any]] = {}
        self.inner: torch.optim.Optimizer | None = None
        if not self.own and any(g["params"] for g in groups):
            self.inner = self._torch_optimizer()
            self.state = self.inner.state

    def _torch_optimizer(self) -> torch.optim.Optimizer:
        kind = getattr(torch.optim, self.family)
        names = kind([torch.zeros(1)]).param_groups[0].keys() - {"params"}
        groups = [
            {
                k: _number(v)
                for k, v in group.items()
                if (k in names or k == "params") and v is not None
            }
            for group in self.groups
            if group["params"]
        ]
        for group in groups:
            # One plain loop on the CPU, whatever the user's object prefers.
            group.update(foreach=False)
            for unused in ("fused", "capturable", "differentiable"):
                if unused in group:
                    group[unused] = False
        inner: torch.optim.Optimizer = kind(groups)
        return inner

    @property
    def weights(self) -> list[torch.Tensor]:
        """Everything that is trained."""
        return [w for group in self.groups for w in group["params"]]

    def loss_scaling(self) -> float:
        """By how much the loss is multiplied before the backward pass."""
        value = self.groups[0].get("loss_scaling", self.extras.get("loss_scaling"))
        return 1.0 if value is None else float(value)

    def update(self, optimizer: Any) -> None:
        """Take over the hyper-parameters of a host optimizer of the same kind."""
        kind = family(optimizer)
        if kind != self.family:
            raise Error(
                f"The optimizer can't change from {self.family} to {kind} after "
                "compilation"
            )
        for group, values in zip(self.groups, hyperparameters(optimizer), strict=True):
            group.update(values)
        self._push()

    def _push(self) -> None:
        if self.inner is None:
            return
        used = [g for g in self.groups if g["params"]]
        for mine, group in zip(self.inner.param_groups, used, strict=True):
            for key in mine.keys() & group.keys() - {"params", "foreach", "fused"}:
                if group[key] is not None and key not in ("capturable",):
                    mine[key] = _number(group[key])

    def step(self) -> None:
        """Clip and update once, from the gradients in `.grad`."""
        limit = self.groups[0].get("max_grad_norm", self.extras.get("max_grad_norm"))
        graded = [w for w in self.weights if w.grad is not None]
        if limit is not None and limit != float("inf") and graded:
            torch.nn.utils.clip_grad_norm_(graded, float(limit))
        if self.inner is not None:
            self.inner.step()
            return
        rule = lamb_update if self.family == "LAMB" else tf_rmsprop_update
        for group in self.groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    rule(weight, weight.grad, self.state.setdefault(weight, {}), group)

    # -- state by PopART's names -------------------------------------------------------

    def read_state(self) -> dict[str, torch.Tensor]:
        """Copies of all state tensors."""
        names = _NAMES.get(self.family, _NAMES["Adam"])
        found = {}
        for weight in self.weights:
            for key, value in self.state.get(weight, {}).items():
                if key in names and isinstance(value, torch.Tensor):
                    found[names[key] + self.names[id(weight)]] = value.detach().clone()
        found["lossScaling_FLOAT"] = torch.tensor(self.loss_scaling())
        return found

    def write_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take over state tensors; names that are unknown here are ignored."""
        names = _NAMES.get(self.family, _NAMES["Adam"])
        for weight in self.weights:
            name = self.names[id(weight)]
            for key, prefix in names.items():
                if prefix + name in state:
                    own = self.state.setdefault(weight, {})
                    own[key] = state[prefix + name].detach().clone()

    def read_params(self) -> dict[str, torch.Tensor]:
        """The hyper-parameters as the device holds them, one per weight."""
        found: dict[str, torch.Tensor] = {}
        for group in self.groups:
            lr, decay = float(group["lr"]), float(group.get("weight_decay") or 0.0)
            for weight in group["params"]:
                name = self.names[id(weight)]
                found[f"learningRate___specific___{name}"] = torch.tensor(lr)
                found[f"weightDecay___specific___{name}"] = torch.tensor(decay)
                if self.family == "SGD":
                    rate = lr * (1 - float(group.get("dampening") or 0.0))
                    found[f"scaledLearningRate0___specific___{name}"] = torch.tensor(
                        rate / self.loss_scaling()
                    )
                    found[f"weightDecayScaleFactor0___specific___{name}"] = (
                        torch.tensor(1 - rate * decay)
                    )
        found["lossScaling_FLOAT"] = torch.tensor(self.loss_scaling())
        return found


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, torch.Tensor) else value
