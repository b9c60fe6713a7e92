"""Documents are run in a directory of their own, and leave no names registered."""

import copy
import os

import pytest

from devrun import registry
from devrun.devices import resolve
from tests.support.strict import zip_strict


@pytest.fixture(autouse=True)
def in_tmp(tmp_path):
    os.chdir(tmp_path)


@pytest.fixture(autouse=True)
def registered_as_before(monkeypatch):
    """Classes of the examples are not there for other tests."""
    monkeypatch.setattr(resolve, "_registered", dict(resolve._registered))
    known = [each for each in vars(registry).values() if hasattr(each, "module_dict")]
    for each in known:
        each.get("none of them")  # loads the built-in ones
    before = [copy.copy(each.module_dict) for each in known]
    yield
    for each, names in zip_strict(known, before):
        each.module_dict = names
