"""`--import`, `--allow-factory` and `custom_imports`: the user's own code, and whose
folders are looked through."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from devrun import trust
from tests.cli.conftest import CONFIG

ROOT = Path(__file__).parents[2]
SOURCE = """
from pathlib import Path
from torch import nn
from devrun import HOOKS, Hook
import dr_helper

@HOOKS.register_module(force=True)
class DrNote(Hook):
    def after_run(self, runner):
        Path("noted").write_text(str(runner.iter))

class Net(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(16, width), nn.Linear(width, 4))

def make_net(width):
    return Net(width)
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a config and modules beside it; the current one is another."""
    folder = tmp_path / "project"
    (folder / "dr_package").mkdir(parents=True)
    (folder / "dr_own.py").write_text(SOURCE)
    (folder / "dr_package" / "nets.py").write_text(SOURCE)
    (folder / "dr_helper.py").write_text("")
    (folder / "dr_other.py").write_text("from pathlib import Path\nPath('ran').touch()")
    (folder / "dr_broken.py").write_text("1 / 0")
    (folder / "dr_needs.py").write_text("import a_package")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(trust, "_opened", set())
    yield folder
    for name in [name for name in sys.modules if name.startswith("dr_")]:
        del sys.modules[name]


@pytest.fixture
def beside(project):
    def write(**changes):
        path = project / "config.json"
        path.write_text(json.dumps({**CONFIG, **changes}))
        return path

    return write


HOOK = {"custom_hooks": [{"type": "DrNote"}]}


def test_a_named_module_beside_the_config_is_imported(beside, train):
    status, _, text = train(beside(**HOOK), "--import", "dr_own")
    assert status == 0, text
    assert Path("noted").read_text() == "8"


def test_a_file_is_imported_by_its_path(beside, train, tmp_path):
    parts = tmp_path / "deeper"
    parts.mkdir()
    (parts / "by_path.py").write_text("raise ImportError('it was found')")
    error = train(beside(), "--import", str(parts / "by_path.py"), "--dry-run")
    assert error[0] == 2
    assert "by_path.py failed" in error[2] and "it was found" in error[2]


def test_or_one_in_the_current_folder(beside, project, train):
    for name in ("dr_own.py", "dr_helper.py"):
        (project / name).rename(name)
    status, _, text = train(beside(**HOOK), "--import", "dr_own", "--dry-run")
    assert status == 0, text


def test_several_and_their_types_by_path_and_no_other_module_of_the_folder(
    beside, train
):
    net = {"type": "dr_package.nets.Net", "width": 3}
    flags = ["--import", "dr_own", "--import", "dr_package.nets", "--dry-run"]
    status, _, text = train(beside(**HOOK, model=net), *flags)
    assert status == 0, text
    status, _, text = train(beside(model={"type": "dr_other.Net"}), *flags)
    assert status == 2
    assert "from which a config cannot import: name it with --import dr_other" in text
    assert not Path("ran").exists()


def test_without_the_flag_nothing_of_the_folder_is_found(beside, train):
    cfg = beside(custom_imports={"imports": ["dr_other"]})
    for folder in (".", "../project"):
        os.chdir(folder)
        status, _, text = train(cfg, "--dry-run")
        assert (status, len(text.splitlines())) == (2, 1)
        assert "dr_other" in text
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dr_none", "--import dr_none failed: ModuleNotFoundError: No module named"),
        ("dr_needs", "named 'a_package'; is a_package installed?"),
        (
            "dr_broken",
            "dr_broken.py:1 in <module>: ZeroDivisionError: division",
        ),
        ("dr_own.py", "--import dr_own.py failed"),
        ("", "is empty"),
    ],
)
def test_what_cannot_be_imported_is_one_line(beside, train, name, reason):
    status, _, text = train(beside(), "--import", name, "--dry-run")
    assert status == 2
    assert reason in text
    assert len(text.splitlines()) == 1


def test_a_function_is_a_type_only_when_it_is_allowed(beside, train):
    cfg = beside(model={"type": "dr_own.make_net", "width": 3})
    flags = ["--import", "dr_own", "--dry-run"]
    status, _, text = train(cfg, *flags)
    assert status == 2
    assert "list it with --allow-factory dr_own.make_net" in text
    status, _, text = train(cfg, *flags, "--allow-factory", "dr_own.make_net")
    assert status == 0, text


def test_test_has_the_flags_too(beside, train, capsys):
    from devrun.cli.main import main

    net = {"type": "dr_own.make_net", "width": 3}
    flags = ["--import", "dr_own", "--allow-factory", "dr_own.make_net"]
    cfg = beside(model=net, runner={"type": "EpochBasedRunner", "max_epochs": 1})
    assert train(cfg, *flags, "--work-dir", "run")[0] == 0
    (saved,) = Path("run/checkpoints").glob("step-*")
    words = ["test", str(cfg), str(saved), "--split", "val", *flags]
    assert main(words) == 0
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.parametrize(
    "path",
    [
        str(ROOT),
        pytest.param(os.pathsep + str(ROOT), marks=pytest.mark.slow),
        pytest.param(os.pathsep.join([".", str(ROOT)]), marks=pytest.mark.slow),
    ],
)
def test_python_m_does_not_open_the_current_folder(beside, project, path):
    """Nor does an empty part of PYTHONPATH; a part that names it does."""
    cfg = beside(model={"type": "dr_other.Net"})
    done = subprocess.run(
        [sys.executable, "-m", "devrun", "train", cfg, "--dry-run"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert "dr_other" in done.stderr
    assert (project / "ran").exists() == path.startswith(".")
