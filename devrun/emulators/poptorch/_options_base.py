"""Named, typed values that can be frozen: the mechanism below all option objects."""

# ruff: noqa: N802 - PopTorch's names
from __future__ import annotations

import copy
from typing import Any, TypeVar

from poptorch._logging import logger

S = TypeVar("S", bound="OptionsDict")


def check(condition: bool, message: str) -> None:
    """Raise `AssertionError` as PopTorch's Python layer does for wrong arguments."""
    if not condition:
        raise AssertionError(message)


def check_int(value: Any, name: str, least: int | None = None) -> int:
    """`value` if it is an int (not a bool); `AssertionError` otherwise."""
    check(
        isinstance(value, int) and not isinstance(value, bool),
        f"{name} must be an integer, not {type(value).__name__} ({value!r})",
    )
    if least is not None:
        check(value >= least, f"{name} must be at least {least}, not {value}")
    return int(value)


def check_bool(value: Any, name: str) -> bool:
    """`value` if it is a bool; `AssertionError` otherwise."""
    check(isinstance(value, bool), f"{name} must be a bool, not {type(value).__name__}")
    return bool(value)


class OptionsDict:
    """Values readable and assignable as attributes until the object is frozen.

    Reading an unknown name raises `AttributeError`; assigning one, or a value of
    another type than the default's, raises `AssertionError`; any assignment to a
    frozen object raises `AttributeError`.
    """

    def __init__(self, **defaults: Any) -> None:
        object.__setattr__(self, "_values", dict(defaults))
        object.__setattr__(self, "_is_frozen", False)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            values = self.__dict__.get("_values", {})
            if name in values:
                return values[name]
        raise AttributeError(f"{type(self).__name__!r} has no option {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__" or name.startswith("_"):
            object.__setattr__(self, name, value)
        else:
            self.set(**{name: value})

    def set(self: S, **values: Any) -> S:
        """Change known options, keeping the types of what they hold."""
        self.checkIsFrozen()
        for name, value in values.items():
            check(name in self._values, f"Invalid option {name}")
            old = self._values[name]
            wanted = int if isinstance(old, int) else type(old)
            check(
                old is None or isinstance(value, wanted),
                f"Unexpected type {type(value)} for option {name}. "
                f"Expected {type(old)}",
            )
            self._assign(name, value)
        return self

    def createOrSet(self: S, **values: Any) -> S:
        """Set options whether or not they exist already."""
        self.checkIsFrozen()
        for name, value in values.items():
            self._assign(name, value)
        return self

    def _assign(self, name: str, value: Any) -> None:
        self._values[name] = value
        shown = str(value).lower() if isinstance(value, bool) else value
        logger.debug("poptorch.Options set %s to value %s", name, shown)

    def exists(self, name: str) -> bool:
        """Whether the option `name` has a value."""
        return name in self._values

    def deleteIfExists(self, name: str) -> None:
        """Forget the option `name`, if it was set."""
        self.checkIsFrozen()
        self._values.pop(name, None)

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Raise `AttributeError` once the object belongs to a model or a loader."""
        if self.__dict__.get("_is_frozen") and option != "anchored_tensors":
            raise AttributeError("Can't modify frozen Options")

    def _freeze(self) -> None:
        object.__setattr__(self, "_is_frozen", True)

    def toDict(self) -> dict[str, Any]:
        """The values, as plain data for the backend."""
        return {key: _plain(value) for key, value in self._values.items()}

    def __deepcopy__(self: S, memo: dict[int, Any]) -> S:
        """An unfrozen copy that shares nothing."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            object.__setattr__(twin, name, copy.deepcopy(value, memo))
        object.__setattr__(twin, "_is_frozen", False)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        values = ", ".join(f"{key}={value!r}" for key, value in self._values.items())
        return f"{type(self).__name__.lstrip('_')}({values})"


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, int) and type(value) is not bool else value
