import copy
import pickle

import pytest

from devrun.config import Config, ConfigDict, where
from devrun.errors import ConfigError
from devrun.trust import granted


def test_a_config_has_mmcvs_face(load):
    cfg = load("model = dict(type='Net')\nlr = 0.1\n")
    assert cfg.filename == "cfg.py"
    assert cfg.text == "model = dict(type='Net')\nlr = 0.1\n"
    assert cfg.pretty_text == cfg.text
    assert isinstance(cfg._cfg_dict, ConfigDict)
    assert (len(cfg), list(cfg)) == (2, ["model", "lr"])
    assert cfg.get("none", 5) == 5
    assert cfg.pop("lr") == 0.1
    assert dict(cfg)["model"] == cfg["model"] == cfg.model
    assert repr(cfg) == "Config (path: cfg.py): {'model': {'type': 'Net'}}"


@pytest.mark.parametrize("key", ["filename", "text", "pretty_text"])
def test_reserved_keys_are_refused(key, refusal):
    with pytest.raises(KeyError, match="reserved"):
        Config({key: 1})
    assert "cannot be a top-level key" in refusal(f"{key}: 1", "cfg.yaml")


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_clones_keep_text_name_and_lines(load, clone):
    cfg = load("model = dict(type='Net')")
    cloned = clone(cfg)
    assert cloned == cfg
    assert (cloned.filename, cloned.text) == (cfg.filename, cfg.text)
    assert where(cloned.model, "type") == where(cfg.model, "type")
    cloned.more = 1
    assert "more" not in cfg


def test_merge_sets_nested_keys_and_list_positions(load):
    cfg = load("data = dict(pipeline=[dict(size=1), dict(size=2)], pair=(1, 2))")
    cfg.merge_from_dict(
        {"data.pipeline.1.size": 5, "data.pair.0": 9, "new.key": [1], "data.n": None}
    )
    assert cfg.data == {
        "pipeline": [{"size": 1}, {"size": 5}],
        "pair": (9, 2),
        "n": None,
    }
    assert cfg.new.key == [1]


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"a.7": 1}, KeyError, "no position 7 in a list of 1 items; the last is 0"),
        ({"a.x": 1}, TypeError, "indexed by a number, not by 'x'"),
        ({"b.c": 1}, TypeError, "cannot be merged into 3 "),
        ({"b..c": 1}, ConfigError, "single dots"),
        ({"n": 1, "n.m": 1}, ConfigError, "n is also given the value 1"),
        ({"": 1}, ConfigError, "single dots"),
    ],
)
def test_merge_refuses_what_fits_nowhere_and_changes_nothing(load, options, kind, text):
    cfg = load("a = [1]\nb = 3\n")
    with pytest.raises(kind, match=text):
        cfg.merge_from_dict({"c": 4, **options})
    assert cfg._cfg_dict == {"a": [1], "b": 3}


def test_nothing_is_there_to_merge_a_key_into_where_none_stands(load):
    cfg = load("optimizer_config = dict(grad_clip=None)\nfp16 = None\n")
    cfg.merge_from_dict({"optimizer_config.grad_clip.max_norm": 1.0, "fp16.a": 2})
    assert cfg.optimizer_config.grad_clip == {"max_norm": 1.0}
    assert cfg.fp16 == {"a": 2}


def test_list_positions_can_be_switched_off():
    cfg = Config({"a": [1]})
    with pytest.raises(TypeError, match="_delete_=True"):
        cfg.merge_from_dict({"a.0": 2}, allow_list_keys=False)


def test_fromstring_reads_each_format():
    assert Config.fromstring("a = 1", ".py").a == 1
    assert Config.fromstring("a: 1", ".yaml").a == 1
    assert Config.fromstring('{"a": 1}', ".json").a == 1
    with pytest.raises(
        ConfigError, match="one of .py, .json, .yaml, .yml, not '.toml'"
    ):
        Config.fromstring("a = 1", ".toml")


def test_a_process_that_trusts_its_configs_runs_them(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("import os\na = len(os.sep)\n")
    with pytest.raises(ConfigError, match="--trust-config"):
        Config.fromfile(path)
    with granted(everything=True):
        assert Config.fromfile(path).a == 1
        assert Config.fromstring(path.read_text(), ".py").a == 1
    with pytest.raises(ConfigError):
        Config.fromfile(path)
