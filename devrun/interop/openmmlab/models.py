"""Models of packages on MMCV 1.x."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from devrun.errors import ConfigError, DevrunError
from devrun.interop.openmmlab.guard import guarded
from devrun.text import cause_of

__all__ = ["init_weights", "move_augments"]


def init_weights(model: Any) -> None:
    """Call the model's `init_weights`, which draws from torch's stream only.

    Raises:
        ConfigError: a file that `init_cfg` names is missing or does not fit.
    """
    name = type(model).__name__
    quiet = logging.getLogger("mmcv")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # a line for each parameter
    try:
        with guarded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.init_weights()
    except DevrunError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the first weights of {name} failed: {cause_of(error)}"
        ) from error
    finally:
        quiet.setLevel(level)


def move_augments(model: Any, loaders: Iterable[Any]) -> None:
    """Have mixup and cutmix of the model done on the host, where batches are made.

    They draw from Python's and numpy's streams and choose by what they drew, which a
    compiled graph would do once and keep. They see the whole batch of an update.

    Args:
        loaders: DataLoaders of the training.
    """
    augments = getattr(model, "augments", None)
    if not type(augments).__module__.startswith("mmcls."):
        return
    for loader in loaders:
        loader.collate_fn = _Augmented(loader.collate_fn, augments)
    model.augments = None


class _Augmented:
    """A collate function followed by `augments(img, gt_label)`."""

    def __init__(self, collate: Callable[[Any], Any], augments: Any) -> None:
        self.collate, self.augments = collate, augments

    def __call__(self, samples: list[Any]) -> Any:
        batch = self.collate(samples)
        img, label = self.augments(batch["img"], batch["gt_label"])
        return {**batch, "img": img, "gt_label": label}
