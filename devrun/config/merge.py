"""MMCV's inheritance rules: a dict goes into a dict, anything else replaces."""

from __future__ import annotations

from typing import Any

from devrun.config.origin import config_error, describe
from devrun.config.redact import shown_value
from devrun.config.tree import ConfigDict, ConfigList, adopt, origin_of, place
from devrun.errors import ConfigTypeError, UnknownNameError
from devrun.place import KeyPath, Origin

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
        origin, here = origin_of(new, key), (*path, key)
        if key not in base and isinstance(key, str) and key.isdecimal():
            key = int(key) if int(key) in base else key
        old = dict.get(base, key)
        if not isinstance(value, ConfigDict):
            place(base, key, value, origin)
        elif key not in base or (old is None and list_keys):
            value.pop(DELETE, None)
            place(base, key, value, origin)
        elif _deletes(value, here):
            del value[DELETE]
            place(base, key, value, origin)
        elif isinstance(old, ConfigDict):
            merge(value, old, here, list_keys=list_keys)
        elif isinstance(old, (list, tuple)) and list_keys:
            made = _merged_list(value, old, here, origin)
            place(base, key, made, origin_of(base, key))
        else:
            first = origin_of(base, key)
            raise config_error(
                f"a dict cannot be merged into {shown_value(old, here)}"
                + (f" ({first})" if first else "")
                + f"; add {DELETE}=True to the dict to replace it",
                origin,
                here,
                ConfigTypeError,
            )


def _is_position(key: Any) -> bool:
    return isinstance(key, str) and key.isdecimal() and len(key) < 10


def _merged_list(
    value: ConfigDict, old: Any, path: KeyPath, origin: Origin | None
) -> Any:
    items = list(old)
    for key, item in value.items():
        here = (*path, key)
        if not _is_position(key):
            reason = f"{describe(old)} is indexed by a number, not by {describe(key)}"
            raise config_error(reason, origin, here, ConfigTypeError)
        index = int(key)
        if index >= len(items):
            reason = f"there is no position {index} in {describe(old)}; the last is "
            raise config_error(
                f"{reason}{len(items) - 1}", origin, here, UnknownNameError
            )
        holder, override = ConfigDict(), ConfigDict()
        place(holder, index, items[index], None)
        place(override, index, item, origin_of(value, key))
        merge(override, holder, path, list_keys=True)
        items[index] = holder[index]
    if isinstance(old, tuple):
        return tuple(items)
    result = ConfigList(items)
    if isinstance(old, ConfigList):
        result._meta_ = old._meta_.thawed()
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


def _deletes(value: ConfigDict, path: KeyPath) -> bool:
    wish = value.get(DELETE, False)
    if not isinstance(wish, bool):
        reason = f"takes True or False, not {describe(wish)}"
        raise config_error(reason, origin_of(value, DELETE), (*path, DELETE))
    return wish
