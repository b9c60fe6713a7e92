"""Small recorded runs, trained once for all tests of the folder."""

import os

import pytest
import yaml

from devrun.cli.main import main
from tests.cli.conftest import CONFIG
from tests.support.command import command


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Train the small config with changes; its work_dir, which nobody may change."""
    done = {}

    def train(name="first", **changes):
        if name not in done:
            folder = tmp_path_factory.mktemp("runs")
            config = folder / f"{name}.yaml"
            config.write_text(yaml.safe_dump({**CONFIG, **changes}))
            here = os.getcwd()
            os.chdir(folder)
            assert main(["train", str(config), "--work-dir", str(folder / name)]) == 0
            os.chdir(here)
            done[name] = folder / name
        return done[name]

    return train


@pytest.fixture
def report(capsys):
    def run(*words):
        capsys.readouterr()
        return command(capsys, "report", *words)

    return run
