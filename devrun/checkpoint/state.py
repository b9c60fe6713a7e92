"""Optimizer state by parameter name, as a tree to save and back.

torch keeps it by position: a module registered in another order would then take
another one's momentum without a word. Here every entry belongs to a name, and what
does not fit is an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from devrun.errors import CheckpointError
from devrun.tensors import is_spread, tensors_in

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
    return _named(model, optimizer, optimizer.state_dict())


def named_optimizer_state(
    model: nn.Module, optimizer: Any, state_dict: Mapping[str, Any]
) -> dict[str, Any]:
    """The tree for a positional `state_dict` that came from a file.

    Raises:
        CheckpointError: groups or parameters are not as many, or a moment has the
            shape of another parameter: it was made with the model in another order.
    """
    tree = _named(model, optimizer, state_dict)
    for name, entries in tree["state"].items():
        _check_moments(name, entries, tree["parameters"][name]["shape"])
    return tree


def _named(
    model: nn.Module, optimizer: Any, state_dict: Mapping[str, Any]
) -> dict[str, Any]:
    names = _group_names(model, optimizer)
    saved_groups = state_dict["param_groups"]
    sizes = [len(group["params"]) for group in saved_groups]
    if sizes != [len(group) for group in names]:
        raise CheckpointError(
            f"the optimizer state is for groups of {sizes} parameters, the optimizer "
            f"has {[len(group) for group in names]}; build both in the same way"
        )
    by_id = {
        number: name
        for group, group_names in zip(saved_groups, names, strict=True)
        for number, name in zip(group["params"], group_names, strict=True)
    }
    parameters = dict(_aliases(model))
    state = state_dict["state"]
    return {
        "type": type(optimizer).__name__,
        "state": {by_id[key]: state[key] for key in state if key in by_id},
        "extra": {key: state[key] for key in state if key not in by_id},
        "groups": [
            {"params": group_names, **_hyper_parameters(group)}
            for group, group_names in zip(saved_groups, names, strict=True)
        ],
        "parameters": {
            name: {
                "shape": list(parameters[name].shape),
                "dtype": str(parameters[name].dtype),
            }
            for group_names in names
            for name in group_names
        },
    }


def positional_optimizer_state(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree as `torch.optim.Optimizer.state_dict` has it, in the saved order."""
    if "optimizers" in tree:
        return {
            key: positional_optimizer_state(one)
            for key, one in tree["optimizers"].items()
        }
    number: dict[str, int] = {}
    for group in tree["groups"]:
        for name in group["params"]:
            number[name] = len(number)
    state = {number[name]: dict(value) for name, value in tree["state"].items()}
    return {
        "state": {**state, **tree["extra"]},
        "param_groups": [
            {**group, "params": [number[name] for name in group["params"]]}
            for group in tree["groups"]
        ],
    }


def load_optimizer_state_by_name(
    model: nn.Module, optimizer: Any, tree: Mapping[str, Any]
) -> None:
    """Put back what `optimizer_state_by_name` gave; nothing of the tree is kept.

    Groups are matched by their names, in any order. Nothing changes unless all fits.

    Raises:
        CheckpointError: other parameters, shapes, groups or optimizers; names them.
    """
    prepare_optimizer_state(model, optimizer, _copied(tree))()


def prepare_optimizer_state(
    model: nn.Module, optimizer: Any, tree: Mapping[str, Any]
) -> Callable[[], None]:
    """Check that the tree fits; what is returned loads it.

    The optimizer takes the tensors of the tree, and changes them in place: no copy of
    the state is made where it was read for this alone.

    Raises:
        CheckpointError: as `load_optimizer_state_by_name`.
    """
    if isinstance(optimizer, Mapping) != ("optimizers" in tree):
        raise CheckpointError(
            "the checkpoint has the state of one optimizer and the run has several, "
            "or the other way round; build the optimizers as when it was saved"
        )
    pairs = [(optimizer, tree)]
    if isinstance(optimizer, Mapping):
        trees = tree["optimizers"]
        _compare("optimizer", optimizer.keys(), trees.keys())
        pairs = [(one, trees[key]) for key, one in optimizer.items()]
    ready = [(one, each, _checked(model, one, each)) for one, each in pairs]

    def load() -> None:
        for one, each, state in ready:
            one.load_state_dict(state)
            _restore_types(model, one, each)
            same_layout(one)

    return load


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


def _checked(
    model: nn.Module, optimizer: Any, tree: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        return _fitted(model, optimizer, tree)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"the optimizer state is not as it was saved: {error!r:.100}"
        ) from error


def _fitted(
    model: nn.Module, optimizer: Any, tree: Mapping[str, Any]
) -> dict[str, Any]:
    """`tree` in the positions of `optimizer`, everything checked."""
    saved_type, now_type = tree["type"], type(optimizer).__name__
    if saved_type != now_type:
        raise CheckpointError(
            f"the checkpoint has the state of {saved_type}, the run uses {now_type}; "
            "go back to it, or take only the weights with load_from"
        )
    names = _group_names(model, optimizer)
    renamed = _present_names(model, tree["parameters"])
    saved_names = [[renamed[n] for n in group["params"]] for group in tree["groups"]]
    _compare("optimizer parameter", _flat(names), _flat(saved_names))
    parameters = dict(_aliases(model))
    for name, facts in tree["parameters"].items():
        here, (shape, _) = parameters[renamed[name]], (facts["shape"], facts["dtype"])
        if list(here.shape) != list(shape):
            raise CheckpointError(
                f"optimizer state of {name!r} is for shape {shape}, the model has "
                f"{list(here.shape)}"
            )
    chosen = _match_groups(names, saved_names)
    position = {name: index for index, name in enumerate(_flat(names))}
    state = {renamed[name]: value for name, value in tree["state"].items()}
    _check_order(state, names, [saved_names[index] for index in chosen], parameters)
    groups: list[dict[str, Any]] = []
    for index, group_names in zip(chosen, names, strict=True):
        group = _hyper_parameters(tree["groups"][index])
        _check_complete(optimizer, len(groups), group, group_names, state)
        groups.append({**group, "params": [position[name] for name in group_names]})
    moved = {position[name]: value for name, value in state.items()}
    return {"state": {**moved, **tree["extra"]}, "param_groups": groups}


def _check_complete(
    optimizer: Any,
    number: int,
    group: dict[str, Any],
    names: list[str],
    state: Mapping[str, Any],
) -> None:
    """Refuse a group without a setting, or a parameter without an entry, that it needs.

    Parameters of one group with as many dimensions have the same entries.
    """
    present = optimizer.param_groups[number]
    probe = object.__new__(type(optimizer))
    filled = {**group, "params": []}  # and what a newer torch adds to an older one's
    about = {"defaults": optimizer.defaults, "state": {}, "param_groups": [filled]}
    probe.__setstate__(about)
    lacking = present.keys() - filled.keys() - {*_STRUCTURE}
    for key in sorted(lacking):
        raise CheckpointError(f"the optimizer state has no {key!r} for group {number}")
    entries: dict[int, set[str]] = {}
    for name, parameter in zip(names, present["params"], strict=True):
        if isinstance(state.get(name), Mapping):
            known = entries.setdefault(parameter.dim(), set(state[name]))
            for key in sorted(known ^ set(state[name])):
                raise CheckpointError(
                    f"the optimizer state of {name!r} and of others of its group "
                    f"differ: not all of them have {key!r}"
                )


def _aliases(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Every name of every parameter: tied ones have several."""
    return model.named_parameters(remove_duplicate=False)


def _group_names(model: nn.Module, optimizer: Any) -> list[list[str]]:
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        names = []
        for index, parameter in enumerate(group["params"]):
            if id(parameter) not in first:
                raise CheckpointError(
                    f"parameter {index} of optimizer group {number}, shape "
                    f"{list(parameter.shape)}, is not in the model, so its value "
                    "would not be saved; make its module a part of the model"
                )
            names.append(first[id(parameter)])
        groups.append(names)
    return groups


def _present_names(model: nn.Module, saved: Iterable[str]) -> dict[str, str]:
    """Saved name -> the first name that the same parameter has now."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    now = {alias: first[id(parameter)] for alias, parameter in _aliases(model)}
    return {name: now.get(name, name) for name in saved}


def _match_groups(now: list[list[str]], saved: list[list[str]]) -> list[int]:
    """For each group of now, the index of the saved group with the same names."""
    free = dict(enumerate(map(frozenset, saved)))
    chosen = []
    for number, names in enumerate(now):
        wanted = frozenset(names)
        index = next((i for i, group in free.items() if group == wanted), None)
        if index is None:
            raise CheckpointError(
                f"no parameter group of the checkpoint has the names of group {number} "
                f"({_listed(names)}); build the groups as when it was saved"
            )
        del free[index]
        chosen.append(index)
    if free:
        raise CheckpointError(
            f"the checkpoint has {len(saved)} parameter groups, the run has {len(now)}"
        )
    return chosen


def _check_order(
    state: Mapping[str, Any],
    now: list[list[str]],
    saved: list[list[str]],
    parameters: Mapping[str, Tensor],
) -> None:
    """State that concatenates all parameters (LBFGS) has no names: same order only."""
    for names, before in zip(now, saved, strict=True):
        if names == before or len(names) < 2:
            continue
        total = sum(parameters[name].numel() for name in names)
        for name in names:
            if any(t.numel() == total for t in tensors_in(state.get(name))):
                raise CheckpointError(
                    "this optimizer's state spans all parameters in their order, and "
                    f"the order changed from {_listed(before)} to {_listed(names)}; "
                    "register the modules as when it was saved"
                )


def _check_moments(name: str, entries: Any, shape: Any) -> None:
    """The moments that torch's optimizers keep have the shape of their parameter."""
    for key in ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "sum"):
        value = entries.get(key) if isinstance(entries, Mapping) else None
        if isinstance(value, Tensor) and value.dim() and list(value.shape) != shape:
            raise CheckpointError(
                f"optimizer state {key!r} for {name!r} has shape {list(value.shape)}, "
                f"the parameter {shape}; it was saved with the model's modules "
                "in another order"
            )


def _restore_types(model: nn.Module, optimizer: Any, tree: Mapping[str, Any]) -> None:
    """Undo torch's cast of state to the parameter's type, where that did not change."""
    renamed = _present_names(model, tree["parameters"])
    parameters = dict(_aliases(model))
    for name, entries in tree["state"].items():
        parameter = parameters[renamed[name]]
        if str(parameter.dtype) != tree["parameters"][name]["dtype"]:
            continue
        for key, saved in entries.items():
            present = optimizer.state[parameter].get(key)
            if not isinstance(saved, Tensor) or not isinstance(present, Tensor):
                continue
            if present.dtype != saved.dtype:
                exact = saved.to(present.device, copy=True)
                optimizer.state[parameter][key] = exact


def _hyper_parameters(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in _STRUCTURE}


def _copied(value: Any) -> Any:
    """The same in tensors and containers of its own."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _compare(what: str, now: Iterable[str], saved: Iterable[str]) -> None:
    missing = sorted(set(now) - set(saved))
    unexpected = sorted(set(saved) - set(now))
    if missing or unexpected:
        clauses = [f"{what}s do not match the checkpoint"]
        if missing:
            clauses.append(f"not in the checkpoint: {_listed(missing)}")
        if unexpected:
            clauses.append(f"only in the checkpoint: {_listed(unexpected)}")
        raise CheckpointError("; ".join(clauses))


def _flat(groups: list[list[str]]) -> list[str]:
    return [name for names in groups for name in names]


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
