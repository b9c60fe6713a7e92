"""A `LightningDataModule` as the `data` section of a config.

data: {type: my_data.Digits, batch_size: 64}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from devrun.dist import on_main
from devrun.errors import ConfigError, UnsupportedFeatureError
from devrun.interop.lightning import lightning_class
from devrun.registry import Registry


@runtime_checkable
class LightningDataModule(Protocol):
    """What is asked of a data module before its loaders are."""

    def prepare_data(self) -> None: ...
    def setup(self, stage: str) -> None: ...
    def train_dataloader(self) -> Any: ...


DATA_MODULES = Registry("data module", expects=lambda: LightningDataModule)


def module_loaders(
    data: Mapping[str, Any],
    workflow: Sequence[tuple[str, int]],
    only: str | None,
    validate: bool,
) -> tuple[list[Any], Any]:
    """Of the module in `data`: a loader for each phase, and one to evaluate on.

    `prepare_data` is called on rank 0 alone, `setup` on each.

    Args:
        workflow: each phase with its mode, train or val.
        only: the split that is evaluated, where nothing else is read.
        validate: whether there is an evaluation; of `val` without `only`. A split that
            the module has no loader for has none.

    Raises:
        ConfigError: no such module, or it makes no loader of one of the phases.
    """
    modes = [only or ("val" if phase == "val" else "train") for phase, _ in workflow]
    evaluated = (only or "val") if validate else None
    module = DATA_MODULES.build(data)
    on_main(module.prepare_data)
    module.setup("test" if evaluated == "test" else "fit")
    bases = lightning_class("LightningDataModule")

    def loader(mode: str) -> Any:
        method = f"{mode}_dataloader"
        own = getattr(type(module), method)
        if any(own is getattr(base, method) for base in bases):
            return None
        made = getattr(module, method)()
        if isinstance(made, (list, tuple)) and len(made) == 1:
            (made,) = made
        if not hasattr(made, "dataset"):
            raise UnsupportedFeatureError(
                f"{method} of {type(module).__name__} gave {type(made).__name__}: "
                "give one DataLoader"
            )
        return made

    loaders = [loader(mode) for mode in modes]
    if None in loaders:
        lacking = f"{modes[loaders.index(None)]}_dataloader"
        raise ConfigError(f"{type(module).__name__} has no {lacking}: write it")
    return loaders, None if evaluated is None else loader(evaluated)
