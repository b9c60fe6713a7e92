"""Optimizer state by parameter name, as a tree to save and back.

torch keeps it by position: a module registered in another order would then take
another one's momentum without a word. Here every entry belongs to a name, and what
does not fit is an error that names it. (torch's own `get_optimizer_state_dict` makes
an optimizer without state take a step, which a run resumed to its bits must not see.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from devrun.errors import CheckpointError
from devrun.tensors import is_spread
from devrun.text import listed

_SHOWN = 5
_STRUCTURE = ("params", "param_names")


def optimizer_state_by_name(model: nn.Module, optimizer: Any) -> dict[str, Any]:
    """State and hyper-parameters of `optimizer` (or a dict of them) as a tree.

    For one optimizer: `type`, `state` (name -> its entries), `groups` (the names in
    order under `params`, and the hyper-parameters), `parameters` (shape and type of
    each), and `extra` (state that belongs to no parameter). For a dict: `optimizers`,
    key -> such a tree. Tensors are not copied.

    Raises:
        CheckpointError: a parameter that `model` does not have, so that its value
            would not be saved with it.
    """
    if isinstance(optimizer, Mapping):
        trees = {
            key: optimizer_state_by_name(model, one) for key, one in optimizer.items()
        }
        return {"optimizers": trees}
    return named_optimizer_state(model, optimizer, optimizer.state_dict())


def positional_optimizer_state(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree as `torch.optim.Optimizer.state_dict` has it, in the saved order.

    Raises:
        CheckpointError: it is no such tree.
    """
    with _as_it_was_saved():
        if "optimizers" in tree:
            trees = tree["optimizers"].items()
            return {key: positional_optimizer_state(one) for key, one in trees}
        order = _flat([group["params"] for group in tree["groups"]])
        number = {name: index for index, name in enumerate(order)}
        state = {number[name]: dict(value) for name, value in tree["state"].items()}
        return {
            "state": {**state, **tree["extra"]},
            "param_groups": [
                {**group, "params": [number[name] for name in group["params"]]}
                for group in tree["groups"]
            ],
        }


def prepare_optimizer_state(
    model: nn.Module, optimizer: Any, tree: Mapping[str, Any]
) -> Callable[[], None]:
    """Check that what `optimizer_state_by_name` gave fits; what is returned loads it.

    Groups are matched by their names, in any order. The optimizer takes the tensors of
    the tree, and changes them in place: no copy of the state is made where it was read
    for this alone.

    Raises:
        CheckpointError: other parameters, shapes, groups or optimizers; names them. Of
            what is returned, that the optimizer itself refuses the values.
    """
    if isinstance(optimizer, Mapping) != ("optimizers" in tree):
        raise CheckpointError(
            "the checkpoint has the state of one optimizer and the run has several, "
            "or the other way round; build the optimizers as when it was saved"
        )
    known = _Names(model)
    pairs = [(optimizer, tree)]
    with _as_it_was_saved():
        if isinstance(optimizer, Mapping):
            trees = tree["optimizers"]
            _compare("optimizer", optimizer.keys(), trees.keys())
            pairs = [(one, trees[key]) for key, one in optimizer.items()]
        ready = [(one, each, _fitted(known, one, each)) for one, each in pairs]

    def load() -> None:
        for one, each, state in ready:
            with _as_it_was_saved():
                one.load_state_dict(state)
            _restore_types(known, one, each)
            same_layout(one)

    return load


@contextmanager
def _as_it_was_saved() -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the optimizer state is not as it was saved: {error!r:.100}"
        ) from error


def same_layout(optimizer: Any) -> None:
    """Lay each parameter's state out in memory as the parameter is.

    A file has all of it row by row. torch's fused updates on a CPU walk through both as
    flat memory, and would take the moments of other weights where they differ.
    """
    for param, entries in optimizer.state.items():
        whole = isinstance(param, Tensor) and not is_spread(param)
        for key, value in dict(entries if whole else ()).items():
            same = isinstance(value, Tensor) and value.shape == param.shape
            if same and value.stride() != param.stride():
                laid = torch.empty_like(param, dtype=value.dtype, device=value.device)
                entries[key] = laid.detach().copy_(value)


class _Names:
    """Names of a model's parameters: of several of a tied one, one counts."""

    def __init__(self, model: nn.Module) -> None:
        self._first = {id(param): name for name, param in model.named_parameters()}
        self.parameters = dict(model.named_parameters(remove_duplicate=False))
        """Under each of their names."""

    def present(self, name: str) -> str:
        """The name that counts now for the parameter that was saved as `name`."""
        known = self.parameters.get(name)
        return name if known is None else self._first[id(known)]

    def groups(self, optimizer: Any) -> list[list[str]]:
        """The names of the parameters in each group."""
        for number, group in enumerate(optimizer.param_groups):
            for index, param in enumerate(group["params"]):
                if id(param) not in self._first:
                    raise CheckpointError(
                        f"parameter {index} of optimizer group {number}, shape "
                        f"{list(param.shape)}, is not in the model, so its value "
                        "would not be saved; make its module a part of the model"
                    )
        return [
            [self._first[id(param)] for param in group["params"]]
            for group in optimizer.param_groups
        ]


def named_optimizer_state(
    model: nn.Module, optimizer: Any, state_dict: Mapping[str, Any]
) -> dict[str, Any]:
    """The tree for a positional `state_dict` of such an optimizer.

    Raises:
        CheckpointError: groups are not as many or as large.
    """
    known = _Names(model)
    names, saved = known.groups(optimizer), state_dict["param_groups"]
    sizes = [len(group["params"]) for group in saved]
    if sizes != [len(group) for group in names]:
        raise CheckpointError(
            f"the optimizer state is for groups of {sizes} parameters, the optimizer "
            f"has {[len(group) for group in names]}; build both in the same way"
        )
    numbers = _flat([group["params"] for group in saved])
    by_id = dict(zip(numbers, _flat(names)))
    state = state_dict["state"]
    return {
        "type": type(optimizer).__name__,
        "state": {by_id[key]: state[key] for key in state if key in by_id},
        "extra": {key: state[key] for key in state if key not in by_id},
        "groups": [
            {"params": group_names, **_hyper_parameters(group)}
            for group, group_names in zip(saved, names)
        ],
        "parameters": {
            name: {
                "shape": list(known.parameters[name].shape),
                "dtype": str(known.parameters[name].dtype),
            }
            for name in _flat(names)
        },
    }


def _fitted(known: _Names, optimizer: Any, tree: Mapping[str, Any]) -> dict[str, Any]:
    """`tree` in the positions of `optimizer`, everything checked."""
    saved_type, now_type = tree["type"], type(optimizer).__name__
    if saved_type != now_type:
        raise CheckpointError(
            f"the checkpoint has the state of {saved_type}, the run uses {now_type}; "
            "go back to it, or take only the weights with load_from"
        )
    names = known.groups(optimizer)
    before = [[known.present(n) for n in group["params"]] for group in tree["groups"]]
    _compare("optimizer parameter", _flat(names), _flat(before))
    for name in _flat([group["params"] for group in tree["groups"]]):
        shape, saved = known.parameters[name].shape, tree["parameters"][name]["shape"]
        if list(shape) != list(saved):
            raise CheckpointError(
                f"optimizer state of {name!r} is for shape {saved}, the model has "
                f"{list(shape)}"
            )
    saved_state = tree["state"].items()
    state = {known.present(name): dict(value.items()) for name, value in saved_state}
    position = {name: index for index, name in enumerate(_flat(names))}
    groups: list[dict[str, Any]] = []
    for here, present in zip(names, optimizer.param_groups):
        same = (n for n, there in enumerate(before) if set(there) == set(here))
        index = next(same, None)
        if index is None:
            raise CheckpointError(
                "no parameter group of the checkpoint has the names of group "
                f"{len(groups)} ({listed(here, _SHOWN)}); build the groups as when it "
                "was saved"
            )
        settings = {
            **_hyper_parameters(present),  # an older torch had fewer of them
            **_hyper_parameters(tree["groups"][index]),
        }
        groups.append({**settings, "params": [position[name] for name in here]})
    moved = {position[name]: value for name, value in state.items()}
    return {"state": {**moved, **tree["extra"]}, "param_groups": groups}


def _restore_types(known: _Names, optimizer: Any, tree: Mapping[str, Any]) -> None:
    """Undo torch's cast of state to the parameter's type, where that did not change."""
    for name, entries in tree["state"].items():
        parameter = known.parameters[name]
        present = optimizer.state[parameter]
        if str(parameter.dtype) != tree["parameters"][name]["dtype"]:
            continue
        for key, saved in entries.items():
            if isinstance(saved, Tensor) and isinstance(present.get(key), Tensor):
                if saved.dtype != present[key].dtype:
                    present[key] = saved.to(present[key].device, copy=True)


def _hyper_parameters(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in _STRUCTURE}


def _compare(what: str, now: Iterable[str], saved: Iterable[str]) -> None:
    missing = sorted(set(now) - set(saved))
    unexpected = sorted(set(saved) - set(now))
    if missing or unexpected:
        clauses = [f"{what}s do not match the checkpoint"]
        if missing:
            clauses.append(f"not in the checkpoint: {listed(missing, _SHOWN)}")
        if unexpected:
            clauses.append(f"only in the checkpoint: {listed(unexpected, _SHOWN)}")
        raise CheckpointError("; ".join(clauses))


def _flat(groups: list[list[Any]]) -> list[Any]:
    return [name for names in groups for name in names]
