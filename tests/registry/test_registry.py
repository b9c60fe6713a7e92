"""Names go in and come out: registration, lookup, scopes."""

import pytest

from devrun.errors import ConfigTypeError, UnknownNameError
from devrun.registry import Registry


class Cat:
    pass


def meow():
    return "meow"


def test_decorator_registers_under_the_class_name_and_returns_the_class():
    animals = Registry("animal")

    @animals.register_module()
    class Dog:
        pass

    assert animals.get("Dog") is Dog
    assert len(animals) == 1
    assert "Dog" in animals
    assert "Cat" not in animals


def test_given_names_replace_the_class_name():
    animals = Registry("animal")
    animals.register_module(["Tom", "Felix"])(Cat)
    animals.register_module(name="Voice", module=meow)
    assert animals.get("Tom") is animals.get("Felix") is Cat
    assert animals.get("Voice") is meow
    assert animals.get("Cat") is None
    assert set(animals.module_dict) == {"Tom", "Felix", "Voice"}


def test_decorator_without_brackets_registers_too():
    animals = Registry("animal")

    @animals.register_module
    class Dog:
        pass

    assert animals.get("Dog") is Dog


def test_a_taken_name_is_refused_unless_forced():
    animals = Registry("animal")
    animals.register_module(module=Cat)
    with pytest.raises(KeyError, match="'Cat' is already registered in the animal"):
        animals.register_module(module=Cat)
    animals.register_module("Cat", force=True, module=meow)
    assert animals.get("Cat") is meow


@pytest.mark.parametrize(
    "arguments",
    [
        {"module": 3},
        {"name": 3},
        {"name": ["a", 3], "module": Cat},
        {"force": 1, "module": Cat},
    ],
)
def test_what_cannot_be_registered_is_a_type_error(arguments):
    with pytest.raises(TypeError) as caught:
        Registry("animal").register_module(**arguments)
    assert isinstance(caught.value, ConfigTypeError)


def test_split_scope_key_cuts_at_the_first_dot():
    assert Registry.split_scope_key("mmcls.ResNet") == ("mmcls", "ResNet")
    assert Registry.split_scope_key("ResNet") == (None, "ResNet")
    assert Registry.split_scope_key("a.b.C") == ("a", "b.C")


def test_scoped_names_are_found_across_children_through_the_root():
    root = Registry("animal", scope="root")
    pets = Registry("animal", parent=root, scope="pets")
    farm = Registry("animal", parent=root, scope="farm")
    pets.register_module(module=Cat)
    root.register_module("Voice", module=meow)
    assert root.get("pets.Cat") is Cat
    assert farm.get("pets.Cat") is Cat
    assert farm.get("root.Voice") is meow
    assert pets.get("pets.Cat") is Cat
    assert root.children == {"pets": pets, "farm": farm}


def test_build_func_is_inherited_from_the_parent():
    root = Registry("animal", lambda cfg, registry: (cfg, registry.name), scope="root")
    child = Registry("cat", parent=root, scope="pets")
    assert child.build(3) == (3, "cat")
    other = Registry("dog", lambda cfg, registry: cfg, parent=root, scope="farm")
    assert other.build(3) == 3


def test_unknown_names_are_answered_with_the_nearest_and_custom_imports():
    animals = Registry("animal")
    animals.register_module(module=Cat)
    with pytest.raises(UnknownNameError) as caught:
        animals.resolve("cta")
    message = str(caught.value)
    assert message.startswith("'cta' is not in the animal registry; did you mean 'Cat'")
    assert "custom_imports" in message
    assert "\n" not in message
