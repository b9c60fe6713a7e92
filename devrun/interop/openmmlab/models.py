"""Models of packages on MMCV 1.x."""

from __future__ import annotations

import logging
import warnings
from typing import Any

from devrun.errors import ConfigError, DevrunError
from devrun.interop.openmmlab.guard import guarded
from devrun.text import cause_of

__all__ = ["init_weights"]


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
