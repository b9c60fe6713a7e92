"""`Hook`: the stages of a run, spelled once. `Priority`: their order.

before_run
  before_train_epoch                              before_val_epoch
    before_train_iter                               before_val_iter
      forward, backward -> after_backward -> update   forward
    after_train_iter                                after_val_iter
  after_train_epoch                               after_val_epoch
after_run

before_save_checkpoint(checkpoint)  after_load_checkpoint(checkpoint)
on_exception(exception)             whenever one leaves the loop
"""

from __future__ import annotations

import enum
import inspect
from typing import Any, ClassVar

from devrun.errors import ConfigError, ConfigTypeError, UnknownNameError, nearest
from devrun.run import Run
from devrun.step import Capability

STAGES = (
    "before_run",
    "before_train_epoch",
    "before_train_iter",
    "after_backward",
    "after_train_iter",
    "after_train_epoch",
    "before_val_epoch",
    "before_val_iter",
    "after_val_iter",
    "after_val_epoch",
    "before_save_checkpoint",
    "after_load_checkpoint",
    "on_exception",
    "after_run",
)

GENERIC = {
    "before_epoch": ("before_train_epoch", "before_val_epoch"),
    "after_epoch": ("after_train_epoch", "after_val_epoch"),
    "before_iter": ("before_train_iter", "before_val_iter"),
    "after_iter": ("after_train_iter", "after_val_iter"),
}
"""A generic method is called in its train and its val stage."""


class Priority(enum.Enum):
    """Lower runs earlier; equal priorities run in the order of registration."""

    HIGHEST = 0
    VERY_HIGH = 10
    HIGH = 30
    ABOVE_NORMAL = 40
    NORMAL = 50
    BELOW_NORMAL = 60
    LOW = 70
    VERY_LOW = 90
    LOWEST = 100


def get_priority(priority: int | str | Priority) -> int:
    """The number of a priority given as number, name (any case) or member.

    Raises:
        ConfigError: a number outside [0, 100].
        UnknownNameError: no such name.
        ConfigTypeError: anything else, `bool` included.
    """
    if isinstance(priority, Priority):
        return priority.value
    if isinstance(priority, int) and not isinstance(priority, bool):
        if not 0 <= priority <= 100:
            raise ConfigError.of("priority", f"{priority} is outside 0 to 100")
        return priority
    if isinstance(priority, str):
        try:
            return Priority[priority.upper()].value
        except KeyError:
            hint = nearest(priority, Priority.__members__)
            raise UnknownNameError(
                f"no priority {priority!r}; {hint}", key="priority"
            ) from None
    raise ConfigTypeError.of(
        "priority", f"must be a number, a name or a Priority, got {priority!r}"
    )


class Hook:
    """Base of all hooks: every stage is here and does nothing.

    Override a stage to take part in it. State that must survive a kill goes through
    `state_dict` and `load_state_dict`; tensors, numbers, strings, lists and dicts
    with string keys can be saved.
    """

    requires: frozenset[Capability] = frozenset()
    """Capabilities the device must have; checked when the hook is registered."""
    priority: Any = Priority.NORMAL
    stages: ClassVar[tuple[str, ...]] = STAGES

    def __repr__(self) -> str:
        names = inspect.signature(type(self)).parameters
        held = [f"{n}={vars(self)[n]!r}" for n in names if n in vars(self)]
        return f"{type(self).__name__}({', '.join(held)})"

    def before_run(self, runner: Run) -> None:
        """Once, when the model is on the device and before the first batch."""

    def after_run(self, runner: Run) -> None:
        """Once, at the normal end."""

    def before_epoch(self, runner: Run) -> None:
        """Before a train or a val epoch."""

    def after_epoch(self, runner: Run) -> None:
        """After a train or a val epoch."""

    def before_iter(self, runner: Run) -> None:
        """Before a train or a val iteration."""

    def after_iter(self, runner: Run) -> None:
        """After a train or a val iteration."""

    def before_train_epoch(self, runner: Run) -> None:
        self.before_epoch(runner)

    def before_val_epoch(self, runner: Run) -> None:
        self.before_epoch(runner)

    def after_train_epoch(self, runner: Run) -> None:
        self.after_epoch(runner)

    def after_val_epoch(self, runner: Run) -> None:
        self.after_epoch(runner)

    def before_train_iter(self, runner: Run) -> None:
        self.before_iter(runner)

    def before_val_iter(self, runner: Run) -> None:
        self.before_iter(runner)

    def after_train_iter(self, runner: Run) -> None:
        self.after_iter(runner)

    def after_val_iter(self, runner: Run) -> None:
        self.after_iter(runner)

    def after_backward(self, runner: Run) -> None:
        """Gradients are complete and unscaled; clipping and the update come next.

        Only on devices with `Capability.GRAD_ACCESS`.
        """

    def before_save_checkpoint(self, runner: Run, checkpoint: dict[str, Any]) -> None:
        """`checkpoint` is the tree about to be written; it may be changed."""

    def after_load_checkpoint(self, runner: Run, checkpoint: dict[str, Any]) -> None:
        """`checkpoint` is the tree just read, before the model takes it."""

    def on_exception(self, runner: Run, exception: BaseException) -> None:
        """An exception is leaving the loop; it is raised again afterwards."""

    def prepare_dry_run(self) -> bool:
        """Whether the hook takes part in a dry run, in which nothing may be left.

        Its `runner.work_dir` is a temporary folder then. A hook that writes anywhere
        else lets go of that place here, or returns False, as one does that sends.
        """
        return True

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on; empty by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""

    def every_n_epochs(self, runner: Run, n: int) -> bool:
        return (runner.epoch + 1) % n == 0 if n > 0 else False

    def every_n_iters(self, runner: Run, n: int) -> bool:
        return (runner.iter + 1) % n == 0 if n > 0 else False

    def every_n_inner_iters(self, runner: Run, n: int) -> bool:
        return (runner.inner_iter + 1) % n == 0 if n > 0 else False

    def end_of_epoch(self, runner: Run) -> bool:
        return runner.inner_iter + 1 == len(runner.data_loader)

    def is_last_epoch(self, runner: Run) -> bool:
        return runner.epoch + 1 == runner.max_epochs

    def is_last_iter(self, runner: Run) -> bool:
        return runner.iter + 1 == runner.max_iters

    def get_triggered_stages(self) -> list[str]:
        """The stages this hook takes part in, in the order of a run."""
        own = {name for name in (*STAGES, *GENERIC) if overrides(self, name)}
        for generic, covered in GENERIC.items():
            if generic in own:
                own.update(covered)
        return [stage for stage in STAGES if stage in own]


def overrides(hook: Hook, name: str) -> bool:
    """Whether `hook` has its own version of the stage method `name`."""
    return name in vars(hook) or getattr(type(hook), name) is not getattr(Hook, name)
