"""What this torch has: the one place that asks. devrun runs on 2.0.1 and later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from devrun.errors import UnsupportedFeatureError

VERSION = torch.__version__.split("+")[0]


def lacks(release: str) -> bool:
    """Whether this torch is older than `release`, such as "2.6"."""
    here = [int(part) for part in VERSION.split(".")[:2]]
    return here < [int(part) for part in release.split(".")]


def needs(release: str, what: str, key: str | None = None) -> None:
    """Refuse `what`, which the config's `key` asks for, in a torch before `release`.

    Raises:
        UnsupportedFeatureError: naming both and the torch that is here.
    """
    if lacks(release):
        raise UnsupportedFeatureError(
            f"{what} needs torch {release} or later, this is torch {torch.__version__}",
            key=key,
        )


def dtypes_in(named: Mapping[str, str]) -> dict[torch.dtype, str]:
    """The table `named` by type, without the types that only a newer torch has."""
    return {getattr(torch, k): v for k, v in named.items() if hasattr(torch, k)}


def cpu_capability() -> str:
    """The vector instructions that torch uses, such as `AVX2`; unknown before 2.1."""
    return "unknown" if lacks("2.1") else torch.backends.cpu.get_cpu_capability()


def is_compiling() -> bool:
    """Whether a compiler follows this code; before 2.1 none that is of use here."""
    return not lacks("2.1") and torch.compiler.is_compiling()


def has_backend(name: str) -> bool:
    """Whether processes can exchange through it."""
    if not lacks("2.1"):
        return torch.distributed.is_backend_available(name)
    asked = getattr(torch.distributed, f"is_{name}_available", None)
    return bool(asked()) if asked else name in torch.distributed.Backend.backend_list


def name_of_plug_in() -> str | None:
    """What a plug-in of torch calls its device; None without one, and before 2.1."""
    if lacks("2.1"):
        return None
    name: str = torch._C._get_privateuse1_backend_name()
    return None if name == "privateuseone" else name


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """What autocast casts to on this device, inside one; else None."""
    if not lacks("2.4"):
        enabled = torch.is_autocast_enabled(device_type)
        return torch.get_autocast_dtype(device_type) if enabled else None
    name = "" if device_type == "cuda" else f"{device_type}_"
    if not getattr(torch, f"is_autocast_{name}enabled", lambda: False)():
        return None
    found: torch.dtype = getattr(torch, f"get_autocast_{name or 'gpu_'}dtype")()
    return found


def autocasts(device_type: str) -> bool:
    """Whether autocast reaches linear layers there; a plug-in may not bring it."""
    if device_type != name_of_plug_in():
        return True
    registered = torch._C._dispatch_has_kernel_for_dispatch_key
    # an older torch has a key of its own for some names
    key = (
        "PrivateUse1"
        if lacks("2.1")
        else torch._C._dispatch_key_for_device(device_type)
    )
    names = ("aten::linear", "aten::addmm", "aten::matmul")
    return any(registered(name, f"Autocast{key}") for name in names)


def mark_stepped(optimizer: Any) -> None:
    """Let a scheduler believe that the optimizer has stepped."""
    vars(optimizer).update(_opt_called=True, _step_count=1)  # since 2.4, before it


def state_hooks(
    optimizer: Any, before_saving: Callable[..., Any], after_loading: Callable[..., Any]
) -> Sequence[Any]:
    """Call these with the optimizer around its `state_dict` and `load_state_dict`.

    Returns handles, whose `remove` ends that.
    """
    if not lacks("2.3"):
        return (
            optimizer.register_state_dict_pre_hook(before_saving),
            optimizer.register_load_state_dict_post_hook(after_loading),
        )
    save, load, own = optimizer.state_dict, optimizer.load_state_dict, vars(optimizer)

    def state_dict() -> Any:
        before_saving(optimizer)
        return save()

    def load_state_dict(state: Any) -> None:
        load(state)
        after_loading(optimizer)

    own.update(state_dict=state_dict, load_state_dict=load_state_dict)
    return [
        SimpleNamespace(remove=partial(own.pop, name, None))
        for name in ("state_dict", "load_state_dict")
    ]


if TYPE_CHECKING or not lacks("2.3"):
    from torch.amp import GradScaler as GradScaler
else:

    class GradScaler(torch.cuda.amp.GradScaler):
        """With the device named first, as of torch 2.3; CUDA's alone before that."""

        def __init__(self, device: str = "cuda", **kwargs: Any) -> None:
            if device != "cuda" and kwargs.get("enabled", True):
                needs("2.3", f"loss scaling (fp16) on device {device}", "precision")
            super().__init__(**kwargs)


def uncompiled() -> AbstractContextManager[Any]:
    """Within, what is compiled runs as it was written, where this torch can do that."""
    return nullcontext() if lacks("2.6") else torch.compiler.set_stance("force_eager")


def as_compiled() -> AbstractContextManager[Any]:
    """Within `uncompiled`, what is compiled runs so again."""
    return nullcontext() if lacks("2.6") else torch.compiler.set_stance("default")
