"""docs/from-mmcv.md: each new name exists, and its lists are those of the code."""

import importlib
import re

import pytest

from devrun.hooks import HOOKS
from tests.docs.blocks import codes, items, text_of

DOCUMENT = "docs/from-mmcv.md"
ROWS = [codes(item) for item in items(DOCUMENT, "## Imports")]
NAMES = [f"{home}.{name}" for _, home, *names in ROWS for name in names]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_import_list_exists(name):
    module, _, attribute = name.rpartition(".")
    assert hasattr(importlib.import_module(module), attribute)


def test_the_loggers_that_are_said_to_be_missing_are():
    sentence = re.search(
        r"the loggers ([\w, ]+) and (\w+)\.", text_of(DOCUMENT).replace("\n", " ")
    )
    for name in [*sentence[1].split(", "), sentence[2]]:
        assert f"{name}LoggerHook" not in HOOKS
