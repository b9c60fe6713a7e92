"""Documents are run in a directory of their own, and leave no names registered."""

from __future__ import annotations

import copy
import os

import pytest

import devrun.data
import devrun.models
import devrun.runners  # noqa: F401 - the built-in names are there before they are counted
from devrun import registry
from devrun.devices import resolve


@pytest.fixture(autouse=True)
def in_tmp(tmp_path):
    os.chdir(tmp_path)


@pytest.fixture(autouse=True)
def registered_as_before(monkeypatch):
    """Classes of the examples are not there for other tests."""
    monkeypatch.setattr(resolve, "_registered", dict(resolve._registered))
    known = [each for each in vars(registry).values() if hasattr(each, "module_dict")]
    before = [copy.copy(each.module_dict) for each in known]
    yield
    for each, names in zip(known, before, strict=True):
        each.module_dict = names
