"""The module that PopTorch compiles: a `StepModule` with its loss marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from devrun.devices.capture import CaptureWatch
from devrun.devices.ipu.batch import Flat, flatten, rebuild
from devrun.errors import ConfigError, ConfigTypeError, UnsupportedFeatureError
from devrun.models.step_module import StepModule
from devrun.tensors import held


@dataclass
class Call:
    """One compiled way of calling the step, and what its forward returned.

    The forward runs once; what is noted here then says how to read the outputs of every
    later call.
    """

    mode: str
    flat: Flat
    scalars: tuple[str, ...] = ()
    """Names of the first outputs; the rest belong to `others`."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Log values that were plain numbers."""
    others: Any = None
    """Flat of the other keys, with `_Input` where an input came back as it was."""
    num_samples: int = 0
    """As the step said, for one micro-batch."""
    rows: int = 0
    """Rows of one micro-batch."""
    watch: CaptureWatch = field(default_factory=CaptureWatch)
    """Of what the forward has of the host, which the graph keeps as it was."""


@dataclass(frozen=True)
class _Input:
    """An output that is input number `index` itself."""

    index: int


class DeviceStep(nn.Module):
    """Wraps `step` for PopTorch, which copies this object, not what is in it.

    `call` is set before each wrapping; the executor's copy keeps the one it was
    wrapped with.
    """

    call: Call

    def __init__(self, step: StepModule, sdk: Any) -> None:
        super().__init__()
        self.step = step
        step.counts_items = False  # no outputs beyond those that PopTorch merges
        vars(self).update(identity_loss=sdk.identity_loss)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        call: Call = self.call
        batch = rebuild(call.flat.template, tensors)
        step: Any = self.step
        training = call.mode == "train"
        parts = [m for m in (step.module, step.loss) if isinstance(m, nn.Module)]
        call.watch = CaptureWatch(*parts)
        with _put_back(parts), tensors_only(step.module), call.watch:
            result = step(batch, call.mode)
        loss = result["loss"]
        if training:
            _check_loss(step, loss)
            loss = self.identity_loss(loss, "none")  # type: ignore[operator]
        call.rows = tensors[0].shape[0] if tensors[0].dim() else 1
        call.num_samples = int(result["num_samples"])
        log_vars = dict(result["log_vars"])
        if loss is not None:
            log_vars["loss"] = loss
        call.scalars = tuple(k for k, v in log_vars.items() if isinstance(v, Tensor))
        call.fixed = {k: v for k, v in log_vars.items() if k not in call.scalars}
        known = ("loss", "log_vars", "num_samples")
        others = {k: v for k, v in result.items() if k not in known and not training}
        outputs, call.others = _new_tensors(others, tensors)
        # float: the device adds them up, for which half is too coarse
        scalars = (log_vars[name].float() for name in call.scalars)
        return (*scalars, *outputs)


@contextmanager
def _put_back(roots: Sequence[nn.Module]) -> Iterator[None]:
    """Afterwards attributes hold no tensors of this graph, which no other can read."""
    modules = [module for root in roots for module in root.modules()]
    before = [dict(vars(module)) for module in modules]
    yield
    for module, own in zip(modules, before):
        for key, value in list(vars(module).items()):
            if value is not own.get(key) and held(value):
                del vars(module)[key]
                if key in own:
                    vars(module)[key] = own[key]


def _check_loss(step: StepModule, loss: Any) -> None:
    if not isinstance(loss, Tensor):
        raise UnsupportedFeatureError(
            f"train_step of {step.model_name} returned no loss: a model that updates "
            "the weights itself cannot run on an IPU; return the loss without stepping"
        )
    if not loss.is_floating_point():
        raise ConfigError(
            f"the loss of {step.model_name} is of type {loss.dtype}: it must be "
            "floating-point"
        )


def _new_tensors(
    others: dict[str, Any], inputs: tuple[Tensor, ...]
) -> tuple[list[Tensor], Any]:
    """Tensors to return, and a template in which inputs are given by their number."""
    flat = flatten(others)
    given = {id(tensor): index for index, tensor in enumerate(inputs)}
    new: list[Tensor] = []
    sources: list[Any] = []
    for tensor in flat.tensors:
        if id(tensor) in given:
            sources.append(_Input(given[id(tensor)]))
        else:
            sources.append(len(new))
            new.append(tensor)
    return new, (flat.template, sources)


def others_of(call: Call, outputs: list[Tensor], inputs: tuple[Tensor, ...]) -> Any:
    """The other keys of a result, from the outputs beyond the log values."""
    template, sources = call.others
    tensors = [
        inputs[source.index] if isinstance(source, _Input) else outputs[source]
        for source in sources
    ]
    result: dict[str, Any] = rebuild(template, tensors)
    return result


def means(
    call: Call, outputs: Sequence[Tensor], weights: Tensor | None, count: float
) -> dict[str, Any]:
    """Log values of all micro-batches as one: the weighted sum of each over `count`.

    Args:
        outputs: of one call, 1-d over its micro-batches or 0-d for a single one.
        weights: one for each micro-batch; None counts each once.
    """
    found: dict[str, Any] = {}
    for name, value in zip(call.scalars, outputs):
        values = value.detach().reshape(-1)
        found[name] = (values if weights is None else values * weights).sum() / count
    return {**found, **call.fixed}


@contextmanager
def tensors_only(model: nn.Module) -> Iterator[None]:
    """Have `model` keep losses and predictions as tensors that it turns into numbers.

    A graph has no numbers. OpenMMLab's models have `_parse_losses`, and their heads a
    `post_process` that makes lists of them. Only inside this context, and of these.
    """
    if not callable(getattr(model, "_parse_losses", None)):
        yield
        return
    changed: list[tuple[nn.Module, str]] = []
    methods: list[tuple[nn.Module, str, Callable[..., Any]]]
    methods = [(model, "_parse_losses", _parsed)]
    for head in model.modules():
        methods.append((head, "post_process", lambda predictions: predictions))
    for owner, name, method in methods:
        if callable(getattr(owner, name, None)) and name not in vars(owner):
            vars(owner)[name] = method
            changed.append((owner, name))
    try:
        yield
    finally:
        for owner, name in changed:
            del vars(owner)[name]


def _parsed(losses: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The sum of all losses, and the mean of each of them, as OpenMMLab has them."""
    log_vars: dict[str, Any] = {}
    for name, value in losses.items():
        if isinstance(value, Tensor):
            log_vars[name] = value.mean()
        elif isinstance(value, (list, tuple)):
            log_vars[name] = sum(part.mean() for part in value)
        elif isinstance(value, Mapping):
            log_vars.update(value)
        else:
            raise ConfigTypeError(
                f"loss {name!r} must be a tensor or a list of them, got {value!r}"
            )
    loss = sum(value for name, value in log_vars.items() if "loss" in name)
    return loss, {**log_vars, "loss": loss}
