"""Options of the eager devices: a config mapping becomes one frozen dataclass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from devrun.construct import where
from devrun.device_facts import FACTS
from devrun.errors import ConfigError, ConfigTypeError, nearest
from devrun.trust import import_path, is_allowed, may_run_code


def option(default: Any, *kinds: type) -> Any:
    """A field of options that takes values of `kinds`."""
    return field(default=default, metadata={"kinds": kinds})


@dataclass(frozen=True)
class EagerOptions:
    """What every eager device takes.

    The last two configure NVIDIA's libraries; other devices accept them so that one
    config runs on all of them, and have nothing to set. None leaves the choice to
    `performance`, and without that to torch.
    """

    ddp_defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Arguments of DistributedDataParallel that a config need not give; no option."""

    performance: str | None = option(None, str)
    """`fast` sets what makes this device fast, of all that is left open."""
    channels_last: bool | None = option(None, bool)
    """Keep 4-d weights and image batches in the channels-last memory format."""
    compile: bool | Mapping[str, Any] | None = option(None, bool, Mapping)
    """`torch.compile` the model in place; a mapping gives its arguments, and with
    `regions: true` each of the model's blocks is compiled by itself."""
    deterministic: bool = option(False, bool)
    """Only algorithms that give the same bits each time; an error where there are
    none."""
    backend: str | None = option(None, str, type(None))
    """Of `torch.distributed`; None takes the usual one of the device."""
    timeout: float | None = option(None, int, float, type(None))
    """Seconds that the processes wait for each other; None keeps torch's limit."""
    tf32: bool | None = option(None, bool, type(None))
    """TF32 in matrix products and convolutions; None keeps torch's setting."""
    cudnn_benchmark: bool | None = option(None, bool, type(None))
    """Let cuDNN time its algorithms; None keeps torch's setting."""


@dataclass(frozen=True)
class IndexedOptions(EagerOptions):
    """For devices of which a machine may have several."""

    index: int | None = option(None, int, type(None))
    """Which one; None takes LOCAL_RANK under a launcher, else the current one."""


O = TypeVar("O", bound=EagerOptions)  # noqa: E741


def refused(
    device: str, name: str, clause: str, kind: type[ConfigError] = ConfigError
) -> ConfigError:
    """The error of the option `name` of `device`; `clause` follows its name."""
    return kind(f"option {name!r} of device {device!r} {clause}", key=name)


def parse_options(options_type: type[O], cfg: Mapping[str, Any], device: str) -> O:
    """`cfg` as options of `device`; the key `type` is not an option and is ignored.

    Raises:
        ConfigError: an option this device does not have, with the nearest one.
        ConfigTypeError: a value of the wrong kind.
    """
    fields = {each.name: each for each in dataclasses.fields(options_type)}
    values = {key: value for key, value in cfg.items() if key != "type"}
    if values.get("emulate") is False:
        del values["emulate"]
    if "emulate" in values and "emulate" not in fields:
        emulated = [name for name, facts in FACTS.items() if facts.has_emulator]
        raise ConfigError(
            f"device {device!r} has no emulator: take device {' or '.join(emulated)}, "
            "which have one, or remove emulate",
            key="emulate",
        )
    for key, value in values.items():
        if key not in fields:
            section = _ELSEWHERE.get(key)
            hint = f"it belongs to {section}" if section else nearest(key, fields)
            raise ConfigError(
                f"device {device!r} has no option {key!r}; {hint}", key=key
            )
        kinds = fields[key].metadata["kinds"]
        # bool is an int to Python, not to whoever wrote `index: true`
        if not isinstance(value, kinds) or (
            isinstance(value, bool) and bool not in kinds
        ):
            accepted = " or ".join(
                _KIND_NAMES.get(kind, kind.__name__) for kind in kinds
            )
            wrong = f"must be {accepted}, got {value!r}"
            raise refused(device, key, wrong, ConfigTypeError)
    index, timeout = values.get("index"), values.get("timeout")
    if index is not None and index < 0:
        raise refused(device, "index", f"is negative: {index}")
    if timeout is not None and not 0 < timeout < math.inf:
        raise refused(device, "timeout", f"must be above 0 seconds: {timeout}")
    check_performance(values.get("performance"), device)
    if isinstance(values.get("compile"), Mapping):
        _check_fallback(values["compile"], device)
        if not may_run_code():
            _check_compile(values["compile"], device)
        backend = values["compile"].get("backend")  # or a function of its own
        if isinstance(backend, str) and "." in backend:
            import_path(backend)  # where a mistake in it has a line
    return options_type(**values)


def check_performance(value: Any, device: str) -> None:
    """Refuse a `performance` that is none of `PRESETS`.

    Raises:
        ConfigError: naming them.
    """
    if value is not None and value not in PRESETS:
        raise refused(
            device,
            "performance",
            f"must be {' or '.join(PRESETS)}, got {value!r}; leave it out for torch's "
            "own settings",
        )


def _check_fallback(arguments: Mapping[str, Any], device: str) -> None:
    fallback, backend = arguments.get("fallback"), arguments.get("backend", "inductor")
    if fallback is None or (fallback == "eager" and backend != "inductor"):
        return
    raise ConfigError(
        f"option 'compile' of device {device!r} takes the fallback eager, with a "
        f"backend that is not inductor; got {fallback!r} with {backend!r}",
        place=where(arguments, "fallback"),
    )


def _check_compile(arguments: Mapping[str, Any], device: str) -> None:
    """A backend by name is looked up among the installed packages and loaded, and a
    text among inductor's options can be a program that it starts: the C++ compiler."""
    backend = arguments.get("backend", "inductor")
    if isinstance(backend, str) and not (backend in _BACKENDS or is_allowed(backend)):
        clause = f"takes the backend {', '.join(_BACKENDS)} from a config, not "
        raise ConfigError(
            f"option 'compile' of device {device!r} {clause}{backend!r}; "
            f"--allow-factory {backend} allows it",
            place=where(arguments, "backend"),
        )
    settings = arguments.get("options")
    settings = settings if isinstance(settings, Mapping) else {}  # torch refuses it
    texts = [k for k, v in settings.items() if not isinstance(v, (bool, int, float))]
    if texts:
        raise ConfigError(
            f"option 'compile' of device {device!r}: options.{texts[0]} must be a "
            f"number, true or false, got {settings[texts[0]]!r}: a text may be a "
            "program to start; --trust-config allows it",
            place=where(settings, texts[0]),
        )


PRESETS = ("fast",)
_BACKENDS = ("inductor", "eager", "aot_eager", "cudagraphs", "hpu_backend")
_ELSEWHERE = {
    "precision": "optimizer_config: {precision: bf16}",
    "grad_clip": "optimizer_config: {grad_clip: {max_norm: 1}}",
    "cumulative_iters": "optimizer_config: {cumulative_iters: 2}",
    "find_unused_parameters": "parallel: {find_unused_parameters: true}",
    "ddp": "parallel: {type: ddp, bucket_cap_mb: 25}",
}
"""What is asked of every device alike, where an option of the device is expected."""
_KIND_NAMES = {
    bool: "true or false",
    Mapping: "a mapping",
    type(None): "null",
    int: "an integer",
    float: "a number",
    str: "a string",
}
