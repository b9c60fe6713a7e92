"""`devrun emulate` runs programs that know nothing of devrun."""

import subprocess
import sys

import pytest

PROGRAM = """
import subprocess, sys
where = '''
import importlib.util
for name in ("poptorch", "popart", "popdist", "habana_frameworks"):
    assert "/devrun/emulators/" in importlib.util.find_spec(name).origin
'''
exec(where)
subprocess.check_call([sys.executable, "-c", where])
print(__name__, *sys.argv[1:])
sys.exit(7)
"""


def emulate(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "devrun", "emulate", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )


def test_a_program_and_its_children_have_the_emulators(tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text(PROGRAM)
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "poptorch.py").write_text("raise RuntimeError('the real one')")
    monkeypatch.setenv("PYTHONPATH", str(installed))
    done = emulate("program.py", "--epochs", "2", "-m", cwd=tmp_path)
    assert done.stdout == "__main__ --epochs 2 -m\n", done.stderr
    assert done.returncode == 7
    assert "are emulated on the CPU" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_module_is_run_as_python_runs_it(tmp_path):
    (tmp_path / "program.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = emulate("-m", "program", "--help", "-m", "x", cwd=tmp_path)
    assert done.stdout == "__main__ ['--help', '-m', 'x']\n"
    assert done.returncode == 0


def test_an_error_of_the_program_is_shown_as_python_shows_it(tmp_path):
    (tmp_path / "wrong.py").write_text("raise KeyError('lr')\n")
    done = emulate("wrong.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "KeyError: 'lr'" in done.stderr
    assert "devrun/cli" not in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [((), "nothing to run"), (("no.py",), "no file 'no.py'"), (("-x",), "-x")],
)
def test_what_cannot_be_run_is_one_line(words, reason, tmp_path):
    done = emulate(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert reason in done.stderr
