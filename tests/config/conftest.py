"""Writing small config files, and the one line that refuses a wrong one."""

import textwrap

import pytest

from devrun.config import Config
from devrun.errors import ConfigError


@pytest.fixture
def write(tmp_path, monkeypatch):
    """`write("a/b.py", text)`; the current directory is where the files are."""
    monkeypatch.chdir(tmp_path)

    def write_file(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return write_file


@pytest.fixture
def load(write):
    """The configuration of one text."""

    def load_text(text, name="cfg.py", **options):
        return Config.fromfile(write(name, text), **options)

    return load_text


@pytest.fixture
def refusal(load):
    """The message that a text is refused with: always one printable line."""

    def refusal_of(text, name="cfg.py", **options):
        with pytest.raises(ConfigError) as caught:
            load(text, name, **options)
        message = str(caught.value)
        assert message.isprintable()
        return message

    return refusal_of
