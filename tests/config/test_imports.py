import logging
import sys

import pytest

from devrun.config import Config
from devrun.errors import ConfigError


@pytest.fixture
def modules(write, monkeypatch, tmp_path):
    write("dr_good.py", "loaded = True\n")
    write("dr_bad.py", "1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield write
    for name in ("dr_good", "dr_bad"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("given", ["['dr_good']", "'dr_good'"])
def test_listed_modules_are_imported(modules, given):
    Config.fromfile(modules("c.py", f"custom_imports = dict(imports={given})\n"))
    assert sys.modules["dr_good"].loaded


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            "dict(imports=['dr_bad'])",
            "importing 'dr_bad' failed: dr_bad.py:1 in <module>: ZeroDivisionError",
        ),
        (
            "dict(imports=['dr_none.x'])",
            "failed: ModuleNotFoundError: No module named 'dr_none'",
        ),
        ("dict(imports=[3])", "custom_imports.imports: takes module names"),
        ("dict(imports=['../x'])", "takes module names"),
        ("dict(imports=3)", "takes text or a list, not 3"),
        (
            "dict(import_=['dr_good'])",
            "custom_imports.import_: unknown key; did you mean 'imports'?",
        ),
        (
            "['dr_good']",
            "custom_imports: takes a dict, not a list of 1 items",
        ),
    ],
)
def test_what_cannot_be_imported_is_named_with_the_reason(modules, given, reason):
    path = modules("c.py", f"\ncustom_imports = {given}\n")
    with pytest.raises(ConfigError) as caught:
        Config.fromfile(path)
    assert str(caught.value).startswith("c.py:2: custom_imports")
    assert reason in str(caught.value)


def test_failed_imports_can_be_allowed(modules, caplog):
    wish = "dict(imports=['dr_bad', 'dr_good'], allow_failed_imports=True)"
    with caplog.at_level(logging.WARNING, "devrun"):
        Config.fromfile(modules("c.py", f"custom_imports = {wish}\n"))
    assert "importing 'dr_bad' failed" in caplog.text
    assert "dr_good" in sys.modules
