"""Where each tensor of a run on the CPU would be if the device were another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

HOST = str(torch.empty(0).device)
"""The host, as torch names it."""


@dataclass(frozen=True)
class Host:
    """A tensor that would stay on the host.

    Attributes:
        what: the call or attribute that made it.
        site: the user's line that did.
        remedy: what to write there, so that it is on the device.
        read: whether a tensor of the device that was read is part of it.
    """

    what: str
    site: str | None = None
    remedy: str = ""
    read: bool = field(default=False, compare=False)


def joined(hosts: list[Host]) -> Host:
    """What is computed of all of them: the first, which is why it is on the host."""
    return replace(hosts[0], read=any(one.read for one in hosts))


class Device:
    """A tensor that would be on the device."""


DEVICE = Device()


class Origins:
    """Tags of storages: on the device, on the host, or not known.

    Weights, buffers and batches are on the device, and so is what is computed from
    them; what a factory makes without `device=` is on the host. What is neither, such
    as a tensor made with `device=x.device`, stays unknown until it meets one that is
    on the device, and is never the cause of a finding.
    """

    def __init__(self) -> None:
        # a weak reference keeps the address from being given to another storage
        self._of: dict[int, tuple[StorageWeakRef, Host | Device]] = {}
        self._blamed: set[Host] = set()

    def tag(self, tensor: Tensor, where: Host | Device) -> None:
        storage = storage_of(tensor)
        if storage is not None:
            self._of[storage._cdata] = StorageWeakRef(storage), where

    def forget(self, tensor: Tensor) -> None:
        """It is not known any more where `tensor` is."""
        storage = storage_of(tensor)
        if storage is not None:
            self._of.pop(storage._cdata, None)

    def of(self, tensor: Tensor) -> Host | Device | None:
        storage = storage_of(tensor)
        if storage is None or storage._cdata not in self._of:
            return None
        return self._of[storage._cdata][1]

    def on_device(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and self.of(tensor) is DEVICE

    def blame(self, host: Host) -> None:
        """It is told that this one is to be on the device; see `once_mended`."""
        if host.site:
            self._blamed.add(host)

    def is_blamed(self, host: Host) -> bool:
        return host in self._blamed

    def once_mended(self, tensor: Any) -> bool:
        """Whether it is on the device, or will be once what was told is mended: what
        is computed of such a tensor goes there with it."""
        where = self.of(tensor) if isinstance(tensor, Tensor) else None
        return where is DEVICE or where in self._blamed

    def stays(self, value: Any) -> Host | None:
        """How a tensor came to be that is on the host, also once what was told is
        mended; None of any other value."""
        where = self.of(value) if isinstance(value, Tensor) else None
        if isinstance(where, Host) and not self.is_blamed(where):
            return where
        return None

    def sweep(self) -> None:
        """Drop the tags of what is freed."""
        self._of = {
            key: value for key, value in self._of.items() if not value[0].expired()
        }


PLACED = Origins()
"""Of the rehearsal in this process; also of what code puts on CUDA by its name."""


ON_HOST: set[Any] = set()
"""Generators that the user's code made without a device; not every torch can refer
to one weakly."""
DRAWS = (
    "torch.Generator",
    "it is one of the host, and the device draws by its own",
    "torch.Generator(device=x.device), or draw without device= and .to(x.device)",
)
"""What is told where one of them fills a tensor of the device: what, why, remedy."""


def flat_tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among an operator's arguments or results: quicker than a walk."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from flat_tensors(value)


def storage_of(tensor: Tensor) -> Any:
    """Its storage; None where it has none of its own."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, nested, a vendor's
        return None
