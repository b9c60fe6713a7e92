"""The meanings of keys, and the JSON schema: the table of `check_config` again."""

import re

import pytest

from devrun.config import KEYS, Config, check_config
from devrun.config.described import all_keys, json_schema, meanings
from devrun.config.schema import _KINDS
from devrun.config.shipped import config_path, shipped_configs
from devrun.errors import ConfigError

TYPES = {
    "string": str, "boolean": bool, "integer": int, "number": (int, float),
    "array": (list, tuple), "object": dict, "null": type(None),
}  # fmt: skip


def accepts(schema, value):
    """What a validator says, of the words that our schema uses."""
    if "anyOf" in schema and not any(accepts(one, value) for one in schema["anyOf"]):
        return False
    if accepts(schema["not"], value) if "not" in schema else False:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    kinds = schema.get("type", list(TYPES))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    ours = [k for k in kinds if isinstance(value, TYPES[k])]
    if isinstance(value, bool):
        ours = [k for k in ours if k == "boolean"]
    if not ours:
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return schema.get("minimum", value) <= value <= schema.get(
            "maximum", value
        ) and value > schema.get("exclusiveMinimum", value - 1)
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return False
    if not isinstance(value, dict):
        return (
            all(accepts(schema.get("items", {}), each) for each in value or ())
            if isinstance(value, list)
            else True
        )
    least, most = schema.get("minProperties", 0), schema.get("maxProperties", 99)
    if not least <= len(value) <= most:
        return False
    if any(name not in value for name in schema.get("required", ())):
        return False
    for name, child in value.items():
        if name in schema.get("properties", {}):
            if not accepts(schema["properties"][name], child):
                return False
        elif not any(re.search(p, name) for p in schema.get("patternProperties", {})):
            if not schema.get("additionalProperties", True):
                return False
    return True


@pytest.mark.parametrize("name", shipped_configs())
def test_the_schema_accepts_what_is_shipped(name):
    cfg = Config.fromfile(config_path(name), import_custom_modules=False)
    check_config(cfg)
    assert accepts(json_schema(), cfg._cfg_dict.to_dict())


@pytest.mark.parametrize("kind", _KINDS)
def test_the_schema_and_the_check_agree_on_values(kind, monkeypatch):
    monkeypatch.setitem(KEYS, "probe", kind)
    schema = json_schema()
    for value in ("x", True, -1, 0, 1, 300, 2**63, 0.5, [], {}, None):
        try:
            check_config({"probe": value})
            fine = True
        except ConfigError:
            fine = False
        appends = kind == "list" and value == {}  # {_append_: [...]}
        beyond = value == 2**63 and kind in ("int", "count", "size", "limit")
        if not (appends or beyond):
            assert accepts(schema, {"probe": value}) is fine, value


@pytest.mark.parametrize(
    ("cfg", "fine"),
    [
        ({"optimzer": {}}, False),
        ({"x-note": 1, "_base_": "a.yaml", "train_pipeline": []}, True),
        ({"checkpoint_config": {"intervall": 1}}, False),
        ({"checkpoint_config": {"type": "MyHook", "intervall": 1}}, True),
        ({"evaluation": {"anything": 1}}, True),
        ({"optimizer_config": {"grad_clip": {"max_norm": -1}}}, False),
        ({"optimizer_config": {"_delete_": True, "grad_clip": None}}, True),
        ({"custom_hooks": {"_append_": [{"type": "EMAHook"}]}}, True),
    ],
)
def test_the_schema_knows_sections(cfg, fine):
    assert accepts(json_schema(), cfg) is fine


def test_every_top_level_key_has_a_meaning_in_the_documents():
    assert not [key for key in KEYS if key not in meanings()]


def test_every_meaning_is_of_a_key_that_is_there():
    assert set(meanings()) <= {path for path, _ in all_keys()}
