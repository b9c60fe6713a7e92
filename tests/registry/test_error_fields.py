"""What an error carries: its parts are fields, its text is made of them."""

import copy
import pickle

import pytest

from devrun.config import Config
from devrun.errors import ConfigError, ConfigTypeError, StorageError
from devrun.place import Origin, Place
from devrun.registry import Registry

BOXES = Registry("box")


@BOXES.register_module()
class Crate:
    def __init__(self, width, label=None):
        if width < 1:
            raise ConfigError.of("width", f"must be 1 or more, got {width}")
        if label is not None:
            raise ConfigError("the label and the width clash")


@pytest.fixture
def cfg(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("model:\n  type: Crate\n  width: 0\n")
    return Config.fromfile(path).model


def test_a_refused_argument_has_its_key_and_place(cfg):
    with pytest.raises(ConfigError) as caught:
        BOXES.build(cfg)
    error = caught.value
    assert error.key == "width"
    assert error.place.path == ("model", "width")
    assert error.place.origin.line == 3
    assert error.subject == "Crate"
    assert error.reason == "width must be 1 or more, got 0"
    assert str(error) == f"{error.place}Crate: must be 1 or more, got 0"


def test_a_key_is_never_read_from_the_text(cfg):
    """Words of a message that happen to be keys do not move its place."""
    cfg.width = 3
    with pytest.raises(ConfigError) as caught:
        BOXES.build({**cfg, "label": "x"})
    assert caught.value.key is None
    cfg["label"] = "x"
    with pytest.raises(ConfigError) as caught:
        BOXES.build(cfg)
    assert caught.value.place.path == ("model",)


def test_a_subject_that_the_place_ends_with_is_not_said_twice():
    error = ConfigError("needs two", subject="spare")
    assert str(error) == "spare: needs two"
    error.locate(Place(Origin("a.py", 3), ("spare",)))
    assert str(error) == "a.py:3: spare: needs two"


@pytest.mark.parametrize(
    "reason",
    ["parts: split takes a list", "parts.split takes a list", "split takes a list"],
)
def test_names_that_the_place_ends_with_are_not_said_twice(reason):
    error = ConfigError(reason, key="split")
    assert str(error) == reason
    error.locate(Place(Origin("a.py", 3), ("parts", "split")))
    assert str(error) == "a.py:3: parts.split: takes a list"


@pytest.mark.parametrize("kind", [ConfigError, ConfigTypeError, StorageError])
@pytest.mark.parametrize("carry", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_the_fields_go_to_other_processes(kind, carry):
    error = kind("no", place=Place(Origin("a.py", 3), ("x",)), key="x", subject="Net")
    error.progress = "epoch 1, iteration 2"
    other = carry(error)
    assert type(other) is kind
    assert str(other) == str(error) == "a.py:3: x: Net: no (epoch 1, iteration 2)"
    assert (other.place, other.key) == (error.place, error.key)
