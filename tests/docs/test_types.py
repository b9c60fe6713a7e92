"""The package is typed for who uses it: strict checks of what users would write."""

import ast
import importlib
import inspect
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata

import pytest

from tests.docs.blocks import ROOT, all_blocks

WRONG = """\
from devrun import HOOKS, EpochBasedRunner, Hook, MODELS
from torch import nn


@HOOKS.register_module()
class Mine(Hook):
    def __init__(self, interval: int = 1) -> None:
        self.interval = interval


@MODELS.register_module(name=["A", "B"])
def small(width: int) -> nn.Module:
    return nn.Linear(width, width)


@HOOKS.register_module
class Bare(Hook):
    def __init__(self, size: int) -> None:
        self.size = size


given = HOOKS.register_module(module=Bare, force=True)
model = nn.Linear(2, 2)
runner = EpochBasedRunner(model, max_epochs=1)
batch = runner.data_batch
Mine(interval=2), small(3), Bare(4), given(5)  # all as they should be

EpochBasedRunner(model, max_epohcs=3)  # wrong: call-arg
EpochBasedRunner(model, max_epochs="3")  # wrong: arg-type
runner.data_bach  # wrong: attr-defined
Mine(intervall=2)  # wrong: call-arg
small("3")  # wrong: arg-type
Bare("4")  # wrong: arg-type
given("5")  # wrong: arg-type
from devrun import EpochBasedRuner  # wrong: attr-defined
from devrun.devices import EagerAdaptor  # wrong: attr-defined
"""
"""Code whose every mistake a type checker must find, and nothing else."""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """What an installation reads, aside: building leaves files in the tree."""
    source = tmp_path_factory.mktemp("source")
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "devrun", source / "devrun", ignore=skipped)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    return source


@pytest.fixture(
    scope="module",
    params=[pytest.param("editable", marks=pytest.mark.slow), "normal"],
)
def python(request, source, tmp_path_factory):
    """The interpreter of an environment in which pip installed devrun."""
    for package in ("pip", "setuptools"):
        # neither imported nor looked for as modules: setuptools then replaces
        # distutils, and refuses to where another test has loaded it
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed")
    environment = tmp_path_factory.mktemp(request.param)
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    known = "venv" in sysconfig.get_scheme_names()  # of Python 3.11
    scheme = "venv" if known else "posix_prefix"
    site = sysconfig.get_path("purelib", scheme, {"base": str(environment)})
    # what devrun depends on is that of this interpreter, without its devrun
    paths = [path for path in sys.path if path.endswith("-packages")]
    (environment.joinpath(site) / "zz_base.pth").write_text("\n".join(paths))
    python = environment / "bin" / "python"
    offline = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
    install = ["--editable"] * (request.param == "editable")
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install"),
        *(*offline, *install, source),
    )
    return python


def run(*words):
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def cache(request, tmp_path_factory):
    """Of mypy: pytest's, which later runs find, unless it was told to have none."""
    known = getattr(request.config, "cache", None)
    return tmp_path_factory.mktemp("mypy") if known is None else known.mkdir("mypy")


@pytest.fixture
def complaints(python, tmp_path, cache):
    """Type checks sources by name; the lines with mypy's errors."""
    api = pytest.importorskip("mypy.api")

    def complaints(sources):
        for name, text in sources.items():
            (tmp_path / name).write_text(text)
        os.chdir(tmp_path)
        plugin = ROOT / "examples" / "plugin_device"
        settings = f"[mypy]\nstrict = True\nmypy_path = {plugin}\n"
        (tmp_path / "mypy.ini").write_text(settings)
        flags = ["--python-executable", str(python), "--cache-dir", str(cache)]
        out, err, _ = api.run([*flags, *sources])
        assert "rror" not in err, err
        return [line for line in out.splitlines() if ": error: " in line]

    return complaints


@pytest.mark.parametrize("front", ["devrun", "devrun.devices"])
def test_names_that_load_when_used_are_imported_for_type_checkers(front):
    module = importlib.import_module(front)
    tree = ast.parse(inspect.getsource(module))
    homes = {
        name.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    table = {"devrun": "_MODULE_OF", "devrun.devices": "_LAZY"}[front]
    assert vars(module)[table].items() <= homes.items()


def of_torch_alone(path):
    """Whether a program imports no package that may be absent, or has no types."""
    tree = ast.parse(path.read_text())
    names = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    names |= {
        each.name
        for n in ast.walk(tree)
        if isinstance(n, ast.Import)
        for each in n.names
    }
    tops = {str(name).partition(".")[0] for name in names}
    return tops <= {"devrun", "devrun_cores", "torch", *sys.stdlib_module_names}


def test_examples_and_mistakes_are_typed_for_their_users(complaints):
    examples = {
        f"{block.document.replace('/', '_').replace('-', '_')[:-3]}_{block.line}.py": (
            block.text
        )
        for block in all_blocks("python")
    }
    assert len(examples) >= 5
    programs = sorted(filter(of_torch_alone, (ROOT / "examples").rglob("*.py")))
    # a script as one writes it without devrun, and its model, taken over as it is
    programs = [one for one in programs if not one.name.startswith("cifar_")]
    assert len(programs) >= 5
    examples |= {
        "_".join(path.relative_to(ROOT).parts): path.read_text() for path in programs
    }
    found = complaints({**examples, "wrong.py": WRONG})
    expected = [
        f"wrong.py:{number}: [{line.partition('# wrong: ')[2]}]"
        for number, line in enumerate(WRONG.splitlines(), 1)
        if "# wrong: " in line
    ]
    told = [f"{line.partition(': error')[0]}: {line.split()[-1]}" for line in found]
    assert told == expected, "\n".join(found)
