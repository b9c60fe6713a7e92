"""`build_from_cfg`: arguments, defaults, and errors that say what to do."""

import copy

import pytest
import torch

from devrun.config.tree import ConfigDict
from devrun.errors import (
    CheckpointError,
    ConfigError,
    ConfigTypeError,
    DeviceMemoryError,
)
from devrun.registry import Registry, build_from_cfg

SHAPES = Registry("shape")


@SHAPES.register_module()
class Box:
    def __init__(self, width, *, height=1, parts=()):
        self.width, self.height, self.parts = width, height, parts
        if width == 0:
            raise ZeroDivisionError("no width\nat all")
        if width < 0:
            raise CheckpointError("torn")


@SHAPES.register_module()
class Mutator:
    def __init__(self, inner, listed):
        inner.pop("type")
        listed.append(1)
        self.inner, self.listed = inner, listed


@SHAPES.register_module()
class Outer:
    def __init__(self, inner):
        self.inner = SHAPES.build(inner)


@SHAPES.register_module()
def make_box(width):
    return Box(width)


def test_type_may_be_a_class_or_function_or_a_registered_function():
    assert build_from_cfg({"type": Box, "width": 2}, SHAPES).width == 2
    assert build_from_cfg({"type": make_box, "width": 2}, SHAPES).width == 2
    assert SHAPES.build({"type": "make_box", "width": 2}).width == 2


def test_default_args_fill_in_and_never_override():
    defaults = {"type": "Box", "width": 5, "height": 7}
    box = SHAPES.build({"height": 3}, default_args=defaults)
    assert (box.width, box.height) == (5, 3)
    assert defaults == {"type": "Box", "width": 5, "height": 7}


def test_cfg_is_not_changed_even_by_a_constructor_that_changes_its_arguments():
    cfg = {"type": "Mutator", "inner": {"type": "Box", "a": [1]}, "listed": [0]}
    before = copy.deepcopy(cfg)
    built = SHAPES.build(cfg)
    assert cfg == before
    assert built.inner == {"a": [1]}
    assert built.listed == [0, 1]


def test_a_config_reaches_the_constructor_in_a_form_it_may_change():
    cfg = ConfigDict(type="Mutator", inner={"type": "Box", "a": 1}, listed=[0])
    built = SHAPES.build(cfg)
    assert built.inner.a == 1
    assert cfg.inner.type == "Box"
    assert cfg.listed == [0]


@pytest.mark.parametrize(
    ("cfg", "registry", "defaults"),
    [
        ("Box", SHAPES, None),
        ({"type": "Box"}, "SHAPES", None),
        ({"type": "Box"}, SHAPES, ["width"]),
        ({"type": 3}, SHAPES, None),
    ],
)
def test_parts_of_the_wrong_kind_are_type_errors(cfg, registry, defaults):
    with pytest.raises(TypeError) as caught:
        build_from_cfg(cfg, registry, defaults)
    assert isinstance(caught.value, ConfigTypeError)


def test_an_unexpected_argument_is_found_before_the_call_with_the_nearest():
    with pytest.raises(TypeError) as caught:
        SHAPES.build({"type": "Box", "width": 0, "heigth": 2})
    assert str(caught.value) == (
        "Box got an unexpected argument 'heigth'; did you mean 'height'? "
        "it accepts: width, height, parts"
    )
    assert isinstance(caught.value, ConfigError)
    assert caught.value.__cause__ is None


def test_missing_arguments_are_named():
    with pytest.raises(ConfigTypeError) as caught:
        SHAPES.build({"type": "Mutator"})
    assert str(caught.value) == (
        "Mutator needs 'inner', 'listed'; it accepts: inner, listed"
    )


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"),
    ],
    ids=["host", "device", "torch's host allocator"],
)
def test_memory_that_runs_out_in_a_constructor_is_no_fault_of_the_config(error):
    def huge():
        raise error

    boxes = Registry("box")
    boxes.register_module("Huge", module=huge)
    with pytest.raises(DeviceMemoryError, match="huge failed") as caught:
        boxes.build({"type": "Huge"})
    assert caught.value.exit_code == 6


def test_an_error_of_ours_keeps_its_class_and_gets_the_name_once():
    with pytest.raises(CheckpointError) as caught:
        SHAPES.build({"type": "Outer", "inner": {"type": "Box", "width": -1}})
    assert str(caught.value) == "Box: torn"
