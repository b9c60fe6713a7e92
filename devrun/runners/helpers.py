"""What MMCV's scripts call beside a runner, and `build_runner`."""

from __future__ import annotations

import copy
import getpass
import socket
import time
from collections.abc import Mapping
from typing import Any

from devrun.devices.seeding import Determinism, seed_streams
from devrun.dist import get_dist_info
from devrun.errors import ConfigTypeError
from devrun.registry import RUNNER_BUILDERS, RUNNERS, build_from_cfg


def get_host_info() -> str:
    """`user@host`, or the host alone where the user has no name."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container may have no passwd entry
        return socket.gethostname()


def get_time_str() -> str:
    """Now, as in the names of log files: `20240131_235959`."""
    return time.strftime("%Y%m%d_%H%M%S", time.localtime())


def set_random_seed(
    seed: int, deterministic: bool = False, use_rank_shift: bool = False
) -> None:
    """Seed python, numpy and torch; a runner's `seed` does this and the data order.

    Args:
        seed: the same one on every rank.
        deterministic: use only algorithms that repeat bit for bit; torch raises
            RuntimeError where an operation has none.
        use_rank_shift: add the rank to `seed`.
    """
    rank = get_dist_info()[0] if use_rank_shift else 0
    seed_streams(seed + rank, 0)
    if deterministic:
        Determinism().apply()


@RUNNER_BUILDERS.register_module()
class DefaultRunnerConstructor:
    """Builds what `runner_cfg["type"]` names in RUNNERS; subclass it to do more.

    Args:
        runner_cfg: the `runner` section.
        default_args: constructor arguments that the section does not override.
    """

    def __init__(
        self,
        runner_cfg: Mapping[str, Any],
        default_args: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(runner_cfg, Mapping):
            raise ConfigTypeError(
                f"runner_cfg must be a dict, got {type(runner_cfg).__name__}"
            )
        self.runner_cfg = runner_cfg
        self.default_args = default_args

    def __call__(self) -> Any:
        return build_from_cfg(self.runner_cfg, RUNNERS, self.default_args)


def build_runner_constructor(cfg: Mapping[str, Any]) -> Any:
    """The constructor object that `cfg["type"]` names in RUNNER_BUILDERS."""
    return build_from_cfg(cfg, RUNNER_BUILDERS)


def build_runner(
    cfg: Mapping[str, Any], default_args: Mapping[str, Any] | None = None
) -> Any:
    """A runner; `cfg["constructor"]` may name another builder. `cfg` is not changed.

    Raises:
        ConfigError: the section cannot be used; the message has its place.
    """
    runner_cfg: Any = copy.deepcopy(cfg)
    if not isinstance(runner_cfg, dict):
        raise ConfigTypeError(
            f"the runner section must be a dict, got {type(cfg).__name__}"
        )
    constructor = runner_cfg.pop("constructor", "DefaultRunnerConstructor")
    return build_runner_constructor(
        {"type": constructor, "runner_cfg": runner_cfg, "default_args": default_args}
    )()
