"""A new project trains at once, and passes its own test."""

import os
import runpy
import shlex
import sys

import pytest

from devrun.cli.new import KINDS
from tests.cli.conftest import one_error, record
from tests.support.command import command

NEEDS = dict.fromkeys(KINDS, "sklearn")
NEEDS.update(images="PIL", lightning="lightning", text="torch")


@pytest.fixture
def forgotten(monkeypatch):
    """Modules of these names are not there, of another test or for the next."""
    from devrun import registry

    monkeypatch.setattr(sys, "path", [*sys.path])
    for known in vars(registry).values():
        if isinstance(known, registry.Registry):
            known.get("none of them")
            monkeypatch.setattr(known, "module_dict", dict(known.module_dict))
    for name in ("my_data", "my_model"):
        sys.modules.pop(name, None)
    yield
    for name in ("my_data", "my_model"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "device"])
def test_a_new_project_trains(kind, capsys, forgotten):
    pytest.importorskip(NEEDS[kind])
    status, out, _ = command(capsys, "new", "my project", "--like", kind)
    assert status == 0
    assert "my_data.py, my_model.py, test_project.py" in out
    _, _, words = out.splitlines()[-1].partition("devrun ")
    os.chdir("my project")
    assert command(capsys, *shlex.split(words))[0] == 0
    best = record("work_dirs/config")["best"]
    # perplexity of text is low by the loss; the others nearly always right
    assert best["score"] < 3.5 if best["metric"] == "loss" else best["score"] > 0.9
    runpy.run_path("test_project.py")["test_a_dry_run"]()


def test_a_new_device_has_its_conformance_test(capsys, tmp_path):
    status, out, _ = command(capsys, "new", "mine", "--like", "device")
    assert status == 0
    assert "cd mine; pip install .; devrun train configs/" in out
    assert (
        "AdapterConformance" in (tmp_path / "mine" / "test_conformance.py").read_text()
    )
    assert (tmp_path / "mine" / "devrun_cores" / "__init__.py").is_file()


def test_a_folder_with_files_stays_as_it_is(capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    error = one_error(command(capsys, "new", "mine"), 2)
    assert "'mine' is there already" in error
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
