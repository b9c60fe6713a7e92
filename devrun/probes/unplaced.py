"""A program that names no device: what it calls is led to one, and told."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from devrun.probes import sites
from devrun.probes.finding import MISMATCH, Finding
from devrun.probes.hosted import born_of, to_device
from devrun.probes.notebook import Notebook
from devrun.probes.origins import PLACED, Host
from devrun.tensors import tensors_in

_STAYS = "it stays on the host, and so does what it computes"


def led(device: str, note: Notebook) -> AbstractContextManager[Any]:
    """Within, modules that are called are on `device`, and so is what they take."""
    move = f'.to("{device}")'

    def called(module: nn.Module, args: Any) -> Any:
        weights = [*module.parameters(), *module.buffers()]
        if any(one.is_cpu for one in weights):
            made = born_of(weights)
            site = made.site if made else sites.line_asking()
            stays(type(module).__name__, f"{move} of it, before the optimizer", site)
            module.to(device)
        site = sites.line_asking()
        given = Host("an argument", site, f"x{move} of what is given here")
        for one in tensors_in(args):
            if one.is_cpu:
                born = born_of([one]) or given
                PLACED.tag(one, born)
                stays(born.what, born.remedy, born.site)
        return to_device(device, args)

    def stays(what: str, remedy: str, site: str | None) -> None:
        note.found(Finding("breaks", MISMATCH, what, _STAYS, remedy, site))

    return register_module_forward_pre_hook(called)
