"""What importing the SDK changes in torch; one place, done once."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from habana_frameworks._emulation import compiling, pinning
from habana_frameworks._emulation.dispatch import fetch
from habana_frameworks._emulation.tensor import HpuTensor, adopt
from habana_frameworks._emulation.torch_private import RAISED

_done: list[bool] = []
_data: Any = Tensor.data


def replace(owner: Any, name: str, value: Any) -> None:
    """An SDK's import has side effects; this is the only door to them."""
    setattr(owner, name, value)


def _twin(tensor: Tensor, data: Tensor) -> Tensor:
    """`data` in the guise of `tensor`: a parameter if it is one."""
    data = data.detach()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(data, tensor.requires_grad)
    return data.requires_grad_(tensor.requires_grad)


def _set_data(tensor: Tensor, value: Tensor) -> None:
    """`tensor.data = value`, also across host and device."""
    here, there = type(tensor) is HpuTensor, type(value) is HpuTensor
    if here and there:
        adopt(tensor, value)  # type: ignore[arg-type]
    elif here or there:
        torch.utils.swap_tensors(tensor, _twin(tensor, value))
    else:
        _data.__set__(tensor, value)


def to_host(value: Any) -> Any:
    """Detached host copies of device tensors in nested dicts, lists and tuples."""
    if type(value) is HpuTensor:
        host = fetch(value, "save")
        return nn.Parameter(host) if isinstance(value, nn.Parameter) else host
    if isinstance(value, dict):
        made = value.copy()
        made.update((k, to_host(v)) for k, v in value.items())
        return made
    if type(value) in (list, tuple):
        return type(value)(to_host(item) for item in value)
    return value


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        moved = value.to(device)
        if isinstance(value, nn.Parameter):
            return nn.Parameter(moved, value.requires_grad)
        return moved
    if isinstance(value, nn.Module):
        return value.to(device)
    if isinstance(value, dict):
        value.update([(k, _move(v, device)) for k, v in value.items()])
        return value
    if type(value) in (list, tuple):
        return type(value)(_move(item, device) for item in value)
    return value


def _saver(original: Any) -> Any:
    @functools.wraps(original)
    def save(obj: Any, *args: Any, **kwargs: Any) -> None:
        original(to_host(obj), *args, **kwargs)

    return save


def _asks_for_device(map_location: Any) -> bool:
    if isinstance(map_location, (str, torch.device)):
        return torch.device(map_location).type == "hpu"
    return False


def _loader(original: Any) -> Any:
    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Files never depend on the device: always to the host first, then across.
        if isinstance(map_location, dict) and "cpu" in map_location:
            map_location = map_location["cpu"]
        if _asks_for_device(map_location):
            loaded = original(f, "cpu", *args, **kwargs)
            return _move(loaded, torch.device(map_location))
        return original(f, map_location, *args, **kwargs)

    return load


def _filler(original: Any) -> Any:
    """`load_state_dict`, which is to fill tensors and not to put others in their place.

    Torch refuses that where somebody has weak references, as recurrent layers do.
    """

    @functools.wraps(original)
    def load_state_dict(*args: Any, **kwargs: Any) -> Any:
        torch.__future__.set_swap_module_params_on_conversion(False)
        try:
            return original(*args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(True)

    return load_state_dict


def _reraising(original: Any) -> Any:
    """A backward pass whose error is what was raised in it, see `Guard.type_`."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        RAISED.clear()
        try:
            return original(*args, **kwargs)
        except SystemError as error:
            raise (RAISED.pop() if RAISED else error) from None

    return run


def _alike(original: Any) -> Any:
    """`ctc_loss`, which torch gives the lengths of the host or of the device."""

    @functools.wraps(original)
    def ctc_loss(scores: Any, targets: Any, *lengths: Any, **kwargs: Any) -> Tensor:
        if scores.device.type == "hpu":
            lengths = tuple(
                one.to(scores.device) if isinstance(one, Tensor) else one
                for one in lengths
            )
        loss: Tensor = original(scores, targets, *lengths, **kwargs)
        return loss

    return ctc_loss


def _reading(original: Any) -> Any:
    """What makes a tensor of a list, where the host waits for each of the device's."""

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        given = (_values(one) if type(one) in (list, tuple) else one for one in args)
        return original(*given, **kwargs)

    return make


def _values(data: Any) -> Any:
    """A list with the numbers of the device's tensors; what is none, as it is."""
    if type(data) is HpuTensor:
        return data.tolist() if data.dim() else data.item()
    return list(map(_values, data)) if type(data) in (list, tuple) else data


def _compiler(original: Any) -> Any:
    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        compiling.install()
        return original(*args, **kwargs)

    return compile


def install() -> None:
    """Change torch; a second call does nothing."""
    if _done:
        return
    _done.append(True)
    # Backward in the thread that called it: a second one would only wait for the
    # interpreter's lock at every operator, and be below no line of the user's.
    torch.autograd.set_multithreading_enabled(False)
    replace(torch.autograd, "backward", _reraising(torch.autograd.backward))
    replace(torch.autograd, "grad", _reraising(torch.autograd.grad))
    # Parameters stay the objects they were when a module moves, for optimizers' sake.
    torch.__future__.set_swap_module_params_on_conversion(True)
    replace(Tensor, "data", property(_data.__get__, _set_data))
    replace(nn.Module, "load_state_dict", _filler(nn.Module.load_state_dict))
    replace(torch, "save", _saver(torch.save))
    replace(torch, "load", _loader(torch.load))
    # Torch has it for its own devices and for one of another name than Gaudi's.
    torch.backends.mha.set_fastpath_enabled(False)
    replace(torch, "ctc_loss", _alike(torch.ctc_loss))
    replace(torch, "compile", _compiler(torch.compile))
    pinning.install(replace)
    for owner, name in (
        (torch, "tensor"),
        (torch, "as_tensor"),
        (Tensor, "new_tensor"),
    ):
        replace(owner, name, _reading(getattr(owner, name)))
    fork = torch.random.fork_rng
    fork_on_device = functools.wraps(fork)(
        lambda *args, **kwargs: fork(*args, **{"device_type": "hpu", **kwargs})
    )
    replace(torch.random, "fork_rng", fork_on_device)
