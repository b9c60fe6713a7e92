import subprocess
from pathlib import Path

import pytest

from devrun.cli.record import git_revision
from tests.cli.conftest import record


def git(*words):
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(["git", *who, *words], check=True, capture_output=True)
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    folder = tmp_path / "there"
    folder.mkdir()
    monkeypatch.chdir(folder)
    git("init", "-q")
    Path("a.txt").write_text("a")
    git("add", "a.txt")
    git("commit", "-q", "-m", "first")
    return folder


def plant(folder, marker):
    """Every program that `git status` would run there, each of which writes a file."""
    program = folder / ".git" / "program"
    program.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "filter.own.clean", "filter.own.process"):
        git("config", key, str(program))
    git("config", "pager.status", str(program))
    (folder / ".git" / "hooks").mkdir(exist_ok=True)
    (folder / ".git" / "hooks" / "post-index-change").symlink_to(program)
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text("* filter=own\n")


def test_no_program_of_a_repository_runs(repository, tmp_path, config, train):
    marker = tmp_path / "PWNED"
    plant(repository, marker)
    Path("a.txt").write_text("b")
    status, _, err = train(config(), "--work-dir", str(tmp_path / "out"))
    assert status == 0, err
    assert not marker.exists()
    assert record(tmp_path / "out")["git"].endswith("-dirty")
    git("status")
    assert marker.exists()  # git by itself does run them


def test_the_commit_and_whether_something_changed(repository):
    commit = git("rev-parse", "HEAD")
    (repository / "sub").mkdir()
    assert git_revision() == git_revision(repository / "sub") == commit
    Path("new.txt").write_text("not in the repository")
    assert git_revision() == commit
    git("add", "new.txt")
    assert git_revision() == f"{commit}-dirty"
    git("commit", "-q", "-m", "second")
    git("worktree", "add", "-q", "../other", commit)
    assert git_revision("../other") == commit
    Path("../other/a.txt").write_text("b")
    assert git_revision("../other") == f"{commit}-dirty"


def test_no_repository_has_no_commit(tmp_path):
    assert git_revision(tmp_path) is None
