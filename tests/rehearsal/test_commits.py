"""`devrun compare --commits`: two states of the user's own code."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
import yaml

from tests.cli.conftest import CONFIG
from tests.support import zygote
from tests.support.command import command

SOURCE = """
import torch
from devrun.registry import MODELS


@MODELS.register_module()
class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(16, 8)
        self.head = Head()

    def forward(self, x):
        return self.head(self.hidden(x))


class Head(torch.nn.Linear):
    def __init__(self):
        super().__init__(8, 4)

    def forward(self, x):
        return super().forward(torch.relu(x))
"""


def git(folder, *words):
    name = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", *name, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """One with a config, a module and data that git does not keep; its folder."""
    folder = tmp_path / "repository"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "kept.txt").write_text("data")
    (folder / ".gitignore").write_text("data/\n")
    (folder / "dr_own.py").write_text(SOURCE)
    cfg = {**CONFIG, "model": {"type": "Own"}}
    (folder / "own.yaml").write_text(yaml.safe_dump(cfg))
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    git(folder, "tag", "first")
    monkeypatch.chdir(folder)
    (tmp_path / "temporary").mkdir()
    return folder


@pytest.fixture
def compare(capfd):
    def run(*words):
        capfd.readouterr()
        return command(capfd, "compare", *words)

    return run


def state(folder):
    listed = subprocess.run(
        ["git", "status", "--porcelain", "--branch"],
        cwd=folder, check=True, capture_output=True, text=True,
    )  # fmt: skip
    names = {p.name for p in (folder / ".git").iterdir()}
    return listed.stdout, names


def test_the_change_of_a_model_is_found_and_nothing_is_left(
    repository, compare, tmp_path, monkeypatch
):
    """Against the working tree, with uncommitted changes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = SOURCE.replace("torch.relu(x)", "torch.tanh(x)")
    (repository / "dr_own.py").write_text(before)
    was = state(repository)
    words = ("own.yaml", "--commits", "first,.", "--import", "dr_own", "--steps", "2")
    status, out, err = compare(*words)
    assert (status, err) == (10, "")
    first, where, operator, *_ = out.splitlines()
    assert first.startswith("first and the working tree: 2 updates")
    assert where == "they part at update 1: activation of head"
    assert "aten.relu" in operator and "aten.tanh" in operator
    assert state(repository) == was
    assert list((tmp_path / "temporary").glob("devrun-*")) == []


def test_an_error_of_one_side_is_its_line_and_status(repository, compare):
    (repository / "dr_own.py").write_text("from own_helper import part\n")
    git(repository, "commit", "-qam", "second")
    words = ("own.yaml", "--commits", "HEAD,first", "--import", "dr_own")
    status, out, err = compare(*words)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "HEAD: --import dr_own failed" in err and "own_helper" in err


def test_a_module_that_is_not_in_the_commit_is_refused(repository, compare):
    (repository / "dr_own.py").write_text(f"import own_helper\n{SOURCE}")
    git(repository, "commit", "-qam", "second")
    (repository / "own_helper.py").write_text("")
    (repository / "new").mkdir()
    os.chdir(repository / "new")
    words = ("../own.yaml", "--commits", "HEAD,first", "--import", "dr_own")
    status, out, err = compare(*words)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert "the module own_helper came from" in err
    assert "not from the commit HEAD: commit the file" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("own.yaml", "--commits", "first,none"), "has no commit 'none'"),
        (("own.yaml", "--commits", "first,-h"), "has no commit '-h'"),
        (("new.yaml", "--commits", "first,."), "commit 'first' has no 'new.yaml'"),
        (("own.yaml", "--commits", "first"), "--commits takes two with a comma"),
        (("../own.yaml", "--commits", "first,."), "not a git repository"),
    ],
)
def test_bad_input_is_one_line(repository, compare, words, said):
    (repository / "new.yaml").write_text("{}")
    status, out, err = compare(*words)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert said in err


@pytest.mark.slow
def test_a_kill_leaves_nothing(repository, tmp_path):
    temporary = tmp_path / "temporary"
    words = ["-m", "devrun", "compare", "own.yaml", "--commits", "first,."]
    env = {**os.environ, "TMPDIR": str(temporary)}
    process = zygote.start([*words, "--import", "dr_own"], env, repository)
    deadline = time.monotonic() + 60
    while not list(temporary.glob("*/0/data")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (next(temporary.glob("*/0/data")) / "kept.txt").read_text() == "data"
    process.send_signal(signal.SIGKILL)
    process.communicate(20)
    while list(temporary.glob("devrun-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(temporary.glob("devrun-*")) == []
