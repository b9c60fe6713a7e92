"""MMCV's inheritance rules: a dict goes into a dict, anything else replaces."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from devrun.config.origin import config_error, describe
from devrun.config.redact import shown_value
from devrun.config.tree import ConfigDict, ConfigList, adopt, origin_of, place
from devrun.errors import ConfigTypeError, UnknownNameError
from devrun.place import KeyPath, Origin, dotted

DELETE = "_delete_"


def merge(
    new: ConfigDict, base: ConfigDict, path: KeyPath = (), *, list_keys: bool = False
) -> None:
    """Put `new` into `base`, in place; `_delete_=True` in a dict drops what it meets.

    With `list_keys`, digits in `new` are the positions of a list in `base`.

    Raises:
        ConfigTypeError: a dict meets something else; a word indexes a list.
        UnknownNameError: a position beyond the end of a list.
    """
    for key, value in new.items():
        if key == DELETE:
            continue
        origin = origin_of(new, key)
        here = (*path, key)
        if key not in base and isinstance(key, str) and key.isdecimal():
            key = int(key) if int(key) in base else key
        if isinstance(value, ConfigDict) and key in base and not _deletes(value, here):
            _merge_into(value, base, key, here, origin, list_keys)
        else:
            place(base, key, _without_delete(value), origin)


def _merge_into(
    value: ConfigDict,
    base: ConfigDict,
    key: Any,
    path: KeyPath,
    origin: Origin | None,
    list_keys: bool,
) -> None:
    old = base[key]
    if old is None and list_keys:
        place(base, key, value, origin)
    elif isinstance(old, ConfigDict):
        merge(value, old, path, list_keys=list_keys)
    elif isinstance(old, (list, tuple)) and list_keys:
        place(base, key, _merge_list(value, old, path, origin), origin_of(base, key))
    else:
        first = origin_of(base, key)
        raise config_error(
            f"a dict cannot be merged into {shown_value(old, path)}"
            + (f" ({first})" if first else "")
            + f"; add {DELETE}=True to the dict to replace it",
            origin,
            path,
            ConfigTypeError,
        )


def _merge_list(
    value: ConfigDict, old: Any, path: KeyPath, origin: Origin | None
) -> Any:
    items = list(old)
    for key, item in value.items():
        here = (*path, key)
        if not (isinstance(key, str) and key.isdecimal()):
            reason = f"{describe(old)} is indexed by a number, not by {describe(key)}"
            raise config_error(reason, origin, here, ConfigTypeError)
        index = int(key[:9])
        if index >= len(items):
            reason = f"there is no position {index} in {describe(old)}; the last is "
            raise config_error(
                f"{reason}{len(items) - 1}", origin, here, UnknownNameError
            )
        holder = ConfigDict()
        place(holder, index, items[index], None)
        override = ConfigDict()
        place(override, index, item, origin_of(value, key))
        merge(override, holder, path, list_keys=True)
        items[index] = holder[index]
    if isinstance(old, tuple):
        return tuple(items)
    result = ConfigList(items)
    result._meta_ = (
        old._meta_.thawed() if isinstance(old, ConfigList) else result._meta_
    )
    return result


def nested(options: dict[str, Any], origin: Origin) -> ConfigDict:
    """`{"a.b.c": value}` as a tree whose every key comes from `origin`.

    Raises:
        ConfigError: an empty part, or a key that is given both a value and keys.
    """
    root = ConfigDict()
    root._meta_.origin = origin
    for full, value in options.items():
        parts = str(full).split(".")
        if not all(parts):
            reason = "a key is words with single dots between them, as in a.b.0.c"
            raise config_error(reason, origin, [full])
        node = root
        for part in parts[:-1]:
            if part not in node:
                place(node, part, ConfigDict(), origin)
                node[part]._meta_.origin = origin
            node = node[part]
            if not isinstance(node, ConfigDict):
                reason = f"{part} is also given the value {shown_value(node, parts)}"
                raise config_error(reason, origin, [full])
        place(node, parts[-1], adopt(value), origin)
    return root


def begin_lists(options: dict[str, Any], tree: ConfigDict, origin: Origin) -> None:
    """Put a list into `tree` where positions are set and nothing is yet.

    `custom_hooks.0.type` is then the first hook of a config that has none.

    Raises:
        UnknownNameError: the positions do not begin with 0, or leave one out.
    """
    for full in options:
        parts = str(full).split(".")
        for depth in range(1, len(parts)):
            here = parts[:depth]
            holder, key = _at(tree, here[:-1]), here[-1]
            if not parts[depth].isdecimal() or _at(tree, here) is not None:
                continue
            if isinstance(holder, ConfigDict):
                made = _empty_list(options, here, origin)
                place(holder, key, made, origin)
            elif isinstance(holder, ConfigList) and key.isdecimal():
                if int(key[:9]) < len(holder):
                    holder[int(key)] = _empty_list(options, here, origin)


def _empty_list(options: dict[str, Any], path: list[str], origin: Origin) -> ConfigList:
    before = ".".join(path) + "."
    rests = (str(key)[len(before) :] for key in options if str(key).startswith(before))
    positions = {rest.split(".")[0][:9] for rest in rests}
    missing = {str(number) for number in range(len(positions))} - positions
    if missing:
        raise config_error(
            f"there is no list yet, and its position {min(missing)} is not given; "
            f"begin with 0, or write it whole, as in {path[-1]}=[...]",
            origin,
            path,
            UnknownNameError,
        )
    return ConfigList([None] * len(positions))


def replace_other_types(
    options: dict[str, Any], new: ConfigDict, tree: ConfigDict
) -> None:
    """Let a whole dict of `options` replace a dict of another `type` in `tree`.

    The arguments of one class are not those of another. `model.type=B` alone changes
    the type and keeps the rest.
    """
    for full, value in options.items():
        path = str(full).split(".")
        if isinstance(value, dict):
            _mark(_at(new, path), _at(tree, path), tuple(path))


def _mark(new: Any, old: Any, path: KeyPath) -> None:
    if not (isinstance(new, ConfigDict) and isinstance(old, ConfigDict)):
        return
    types = new.get("type"), old.get("type")
    if DELETE not in new and None not in types and types[0] != types[1]:
        place(new, DELETE, True, None)
        logging.getLogger("devrun").info(
            "%s: replaced, since its type changes; to keep its other keys, set %s.type",
            *2 * (dotted(path),),
        )
        return
    for key, child in new.items():
        _mark(child, _at(old, [key]), (*path, key))


def _at(tree: Any, path: Iterable[Any]) -> Any:
    """The value at `path`; None if there is none."""
    for part in path:
        is_number = isinstance(part, str) and part.isdecimal()
        if isinstance(tree, ConfigDict):
            key = int(part[:9]) if part not in tree and is_number else part
            tree = dict.get(tree, key)
        elif isinstance(tree, (list, tuple)) and is_number:
            index = int(part[:9])
            tree = tree[index] if index < len(tree) else None
        else:
            return None
    return tree


def _deletes(value: dict[Any, Any], path: KeyPath) -> bool:
    wish = value.get(DELETE, False)
    if not isinstance(wish, bool):
        reason = f"takes True or False, not {describe(wish)}"
        raise config_error(reason, origin_of(value, DELETE), (*path, DELETE))
    return wish


def _without_delete(value: Any) -> Any:
    if isinstance(value, ConfigDict) and DELETE in value:
        del value[DELETE]
    return value
